//! Tests of the excerpt of an output in a result.

use proptest::prelude::*;
use taskwire_core::{TaskId, Timestamp, id::ID_RANDOM_BYTES};

use super::*;

fn link() -> OutputLink {
    OutputLink { uri: "taskwire://task/abc/output".to_owned(), name: "output of x".to_owned(), is_whole: true }
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn stderr(text: &str) -> Value {
    json!({"type": "text", "text": text, "_meta": {"dev.taskwire/stream": "stderr"}})
}

fn image(bytes: usize) -> Value {
    json!({"type": "image", "data": "A".repeat(bytes), "mimeType": "image/png"})
}

/// The content after all output.
fn ended(excerpt: &mut OutputExcerpt, link: Option<&OutputLink>) -> Vec<Value> {
    excerpt.finish();
    excerpt.content(link)
}

fn text_of(block: &Value) -> &str {
    block["text"].as_str().expect("it is text")
}

/// Bytes of all text in memory, whether it still counts or not.
fn kept(excerpt: &OutputExcerpt) -> usize {
    let text = |item: &Item| if let Item::Text(piece) = item { piece.text.len() } else { 0 };
    excerpt.head.iter().map(text).sum::<usize>() + excerpt.tail.iter().map(text).sum::<usize>()
}

#[test]
fn nothing_is_nothing() {
    let mut excerpt = OutputExcerpt::new(256);
    excerpt.text("");
    excerpt.block(&text(""));
    excerpt.block(&stderr(""));
    assert_eq!(ended(&mut excerpt, Some(&link())), Vec::<Value>::new());
    assert_eq!((excerpt.written_bytes(), excerpt.is_cut()), (0, false));
}

#[test]
fn the_last_line_is_told_if_it_is_whole_and_short() {
    let last = |blocks: &[Value]| {
        let mut excerpt = OutputExcerpt::new(256);
        blocks.iter().for_each(|block| excerpt.block(block));
        excerpt.finish();
        excerpt.last_line().map(ToOwned::to_owned)
    };
    assert_eq!(last(&[]), None);
    assert_eq!(last(&[text("one\n two \n \n")]).as_deref(), Some("two"));
    assert_eq!(last(&[text("a"), text("b")]).as_deref(), Some("ab"), "text that follows text is one");
    assert_eq!(last(&[text("\u{1b}[31m10%\r\u{1b}[32m100%")]).as_deref(), Some("100%"), "as a terminal shows it");
    assert_eq!(last(&[stderr("why\n"), text("done\n")]).as_deref(), Some("why"), "standard error tells more");
    assert_eq!(last(&[text("done\n"), stderr(" \n")]).as_deref(), Some("done"));
    assert_eq!(last(&[text(&"x".repeat(201))]), None, "too long");
    assert_eq!(last(&[text(&"x".repeat(1000)), text("y")]), None, "its beginning is left out");
    assert_eq!(last(&[text(&"x".repeat(1000)), text("\ny")]).as_deref(), Some("y"));
    assert_eq!(last(&[image(10), text("after"), image(10)]).as_deref(), Some("after"));
}

#[test]
fn text_that_just_fits_is_one_block_and_one_byte_more_is_cut() {
    for part in [1, 7, 300, 1024] {
        let mut excerpt = OutputExcerpt::new(1024);
        let all = "é€ab".repeat(200)[..].chars().take(450).collect::<String>();
        let all = format!("{all}{}", "x".repeat(1024 - all.len()));
        let chars: Vec<char> = all.chars().collect();
        for some in chars.chunks(part) {
            excerpt.text(&some.iter().collect::<String>());
        }
        assert_eq!(ended(&mut excerpt, Some(&link())), [text(&all)]);
        assert!(!excerpt.is_cut());
        excerpt.text("y");
        excerpt.finish();
        assert!(excerpt.is_cut());
        assert_eq!(excerpt.written_bytes(), 1025);
        assert_eq!(ended(&mut excerpt, None).len(), 3);
    }
}

#[test]
fn of_much_text_there_are_whole_lines_of_both_ends_and_where_the_rest_is() {
    let mut excerpt = OutputExcerpt::new(1000);
    let mut all = String::new();
    for line in 0..10_000 {
        let line = format!("line {line}\n");
        excerpt.text(&line);
        all.push_str(&line);
    }
    let content = ended(&mut excerpt, Some(&link()));
    let [head, notice, tail, link] = &content[..] else { panic!("four blocks: {content:?}") };
    let (head, tail) = (text_of(head), text_of(tail));
    assert!(all.starts_with(head) && head.ends_with('\n') && (230..=250).contains(&head.len()));
    assert!(all.ends_with(tail) && tail.starts_with("line 9") && (730..=750).contains(&tail.len()));
    let notice = text_of(notice);
    assert!(notice.contains(&format!("[{} of {} bytes", all.len() - head.len() - tail.len(), all.len())), "{notice}");
    assert!(notice.contains(&format!("taskwire://task/abc/output?from={}&bytes=1000", head.len())), "{notice}");
    assert!(notice.contains(r#"task_output, if you have it, with {"task_id":"abc"}"#), "{notice}");
    let description = format!("All {} bytes of text that the command wrote.", all.len());
    assert_eq!(
        *link,
        json!({"type": "resource_link", "uri": "taskwire://task/abc/output", "name": "output of x", "description": description,
            "mimeType": "text/plain", "size": all.len()})
    );
    assert!(text_of(&ended(&mut excerpt, None)[1]).contains("not kept"), "without a link nothing is promised");
}

#[test]
fn a_line_without_an_end_is_cut_between_characters() {
    let mut excerpt = OutputExcerpt::new(257);
    excerpt.text(&"€".repeat(100_000));
    let content = ended(&mut excerpt, None);
    let (head, tail) = (text_of(&content[0]), text_of(&content[2]));
    assert!(head.chars().chain(tail.chars()).all(|char| char == '€'));
    assert!((head.len() + tail.len()) > 250 && (head.len() + tail.len()) <= 257);
    assert!(kept(&excerpt) < 2 * 257, "what is dropped is not kept");
}

#[test]
fn standard_error_stays_apart_and_in_order() {
    let mut excerpt = OutputExcerpt::new(4096);
    excerpt.text("a");
    excerpt.block(&text("b"));
    excerpt.block(&stderr("x"));
    excerpt.block(&stderr("y"));
    excerpt.text("c");
    assert_eq!(ended(&mut excerpt, None), [text("ab"), stderr("xy"), text("c")]);
}

#[test]
fn standard_error_is_joined_again_where_the_beginning_ends() {
    let mut excerpt = OutputExcerpt::new(1024);
    for _ in 0..90 {
        excerpt.block(&stderr("0123456789"));
    }
    assert_eq!(ended(&mut excerpt, None), [stderr(&"0123456789".repeat(90))]);
}

#[test]
fn a_text_block_that_says_more_about_itself_is_not_joined_and_loses_that_only_if_it_is_too_much() {
    let mut excerpt = OutputExcerpt::new(4096);
    let own = json!({"type": "text", "text": "for you", "annotations": {"audience": ["user"]}});
    excerpt.text("a");
    excerpt.block(&own);
    excerpt.block(&own);
    excerpt.block(&json!({"type": "text", "text": "big", "_meta": {"x": "y".repeat(5000)}}));
    excerpt.text("b");
    assert_eq!(ended(&mut excerpt, None), [text("a"), own.clone(), own, text("big"), text("b")]);
    assert!(!excerpt.is_cut());
}

#[test]
fn a_command_that_switches_between_its_streams_makes_no_endless_list() {
    let mut excerpt = OutputExcerpt::new(4096);
    for _ in 0..100_000 {
        excerpt.text("o");
        excerpt.block(&stderr("e"));
    }
    let content = ended(&mut excerpt, Some(&link()));
    assert!(content.len() < 80, "{}", content.len());
    assert_eq!(excerpt.written_bytes(), 200_000);
    assert!(text_of(&content[content.len() - 2]).ends_with('e'), "the end is the end");
}

#[test]
fn images_keep_their_place() {
    let mut excerpt = OutputExcerpt::new(4096);
    excerpt.text("before ");
    excerpt.block(&image(5000));
    excerpt.text("after");
    assert_eq!(ended(&mut excerpt, None), [text("before "), image(5000), text("after")]);
    excerpt.text(&"x".repeat(1100));
    excerpt.block(&image(1));
    excerpt.text(&"y\n".repeat(10_000));
    excerpt.block(&image(2));
    let content = ended(&mut excerpt, None);
    let kinds: Vec<_> = content.iter().map(|block| block["type"].as_str().expect("a type")).collect();
    assert_eq!(kinds, ["text", "image", "text", "text", "image", "text", "image"]);
    assert!(text_of(&content[3]).contains("left out"));
    assert_eq!((&content[4], &content[6]), (&image(1), &image(2)));
    assert!(text_of(&content[5]).starts_with("y\n"));
}

#[test]
fn of_too_many_images_it_is_said_how_many_are_left_out() {
    let mut excerpt = OutputExcerpt::new(4096);
    for _ in 0..5 {
        excerpt.block(&image(300_000));
    }
    excerpt.block(&image(2_000_000));
    excerpt.block(&image(10));
    excerpt.text("end");
    let content = ended(&mut excerpt, Some(&link()));
    assert!(excerpt.is_cut());
    assert_eq!(content.len(), 6);
    assert_eq!(content[3], image(10), "a small one still fits");
    assert_eq!(content[4], text("end"));
    assert!(text_of(&content[5]).contains("3 blocks that are not text are left out (2600"), "{}", content[5]);
}

#[test]
fn progress_that_is_drawn_over_counts_as_what_is_seen_of_it() {
    let mut excerpt = OutputExcerpt::new(1024);
    excerpt.text("copying\n");
    for percent in 0..=100 {
        for part in ["\r\u{1b}[3".to_owned(), format!("2m{percent}%"), "\u{1b}[0m".to_owned()] {
            excerpt.text(&part);
        }
    }
    excerpt.text("\r\ncopied\n");
    assert_eq!(ended(&mut excerpt, Some(&link())), [text("copying\n100%\ncopied\n")], "all of it is there, and no link is needed");
    assert!(excerpt.is_collapsed() && !excerpt.is_cut() && excerpt.written_bytes() > 1024);
    let mut plain = OutputExcerpt::new(1024);
    plain.text("copied\n");
    plain.finish();
    assert!(!plain.is_collapsed());
}

#[test]
fn a_line_is_drawn_over_by_its_own_stream_only() {
    let mut excerpt = OutputExcerpt::new(4096);
    excerpt.text("10%");
    excerpt.block(&stderr("warning\r\n"));
    excerpt.text("\r20%");
    excerpt.block(&image(3));
    excerpt.text("\r30%\r40%");
    excerpt.block(&json!({"type": "text", "text": "a\rb", "_meta": {"a": 1}}));
    let own = json!({"type": "text", "text": "b", "_meta": {"a": 1}});
    assert_eq!(ended(&mut excerpt, None), [text("10%"), stderr("warning\n"), text("20%"), image(3), text("40%"), own]);
}

#[test]
fn sizes_are_true_where_lines_were_drawn_over() {
    let mut excerpt = OutputExcerpt::new(1000);
    let mut written = 0;
    for line in 0..2000 {
        let line = format!("0%\r50%\rline {line}\n");
        written += line.len();
        excerpt.text(&line);
    }
    let seen: usize = (0..2000).map(|line| format!("line {line}\n").len()).sum();
    let content = ended(&mut excerpt, Some(&link()));
    let [head, notice, tail, link] = &content[..] else { panic!("four blocks: {content:?}") };
    let left_out = seen - text_of(head).len() - text_of(tail).len();
    let notice = text_of(notice);
    assert!(notice.contains(&format!("[{left_out} of {seen} bytes")) && notice.contains(&format!("wrote {written} bytes")), "{notice}");
    assert!(notice.contains("taskwire://task/abc/output,") && !notice.contains("?from="), "an offset in it would be another: {notice}");
    assert_eq!(
        (&link["size"], link["description"].as_str().is_some_and(|text| text.contains(&written.to_string()))),
        (&json!(written), true)
    );
}

#[test]
fn of_a_block_in_parts_the_link_is_shown_where_it_leads_somewhere() {
    let mut excerpt = OutputExcerpt::new(1000);
    let part = json!({"type": "resource", "resource": {"uri": "x:", "blob": "AAAA"}, "_meta": {"dev.taskwire/part": {"of": "0a", "part": 0, "parts": 1}}});
    let id = TaskId::new(Timestamp::from_millis(5_000), [7; ID_RANDOM_BYTES]);
    let uri = format!("taskwire://task/{id}/block/0a");
    let block = json!({"type": "resource_link", "uri": uri, "name": "image", "size": 3});
    excerpt.block(&part);
    assert!(!excerpt.needs_task());
    excerpt.block(&block);
    assert!(excerpt.needs_task() && !excerpt.is_cut());
    assert_eq!(ended(&mut excerpt, Some(&link())), [block]);
    assert!(text_of(&ended(&mut excerpt, None)[0]).contains("3 bytes was left out"));
}

#[test]
fn what_is_no_longer_kept_is_told_first() {
    let mut excerpt = OutputExcerpt::new(1000);
    excerpt.lost_beginning();
    excerpt.text("the rest\n");
    let lost = OutputLink { is_whole: false, ..link() };
    let content = ended(&mut excerpt, Some(&lost));
    assert!(excerpt.is_cut() && text_of(&content[0]).contains("limits.task_output_bytes"), "{content:?}");
    assert_eq!((&content[1], &content[2]["uri"], content[2].get("size")), (&text("the rest\n"), &json!(lost.uri), None));
}

#[derive(Debug, Clone)]
enum Fed {
    Text(String),
    Err(String),
    Own(String),
    Image,
}

fn fed() -> impl Strategy<Value = Fed> {
    let some = || "[a-cé€🦀\n]{0,90}";
    prop_oneof![4 => some().prop_map(Fed::Text), 2 => some().prop_map(Fed::Err), 1 => some().prop_map(Fed::Own), 1 => Just(Fed::Image)]
}

proptest! {
    #[test]
    fn beginning_and_end_are_exact_and_bounded(all in proptest::collection::vec(fed(), 0..60), inline_bytes in 256usize..2000) {
        let mut excerpt = OutputExcerpt::new(inline_bytes);
        let mut written = String::new();
        let mut images = 0;
        for one in &all {
            match one {
                Fed::Text(some) => excerpt.text(some),
                Fed::Err(some) => excerpt.block(&stderr(some)),
                Fed::Own(some) => excerpt.block(&json!({"type": "text", "text": some, "_meta": {"a": 1}})),
                Fed::Image => excerpt.block(&image(3)),
            }
            match one {
                Fed::Text(some) | Fed::Err(some) | Fed::Own(some) => written.push_str(some),
                Fed::Image => images += 1,
            }
        }
        prop_assert_eq!(excerpt.written_bytes(), written.len() as u64);
        let content = ended(&mut excerpt, None);
        prop_assert_eq!(content.iter().filter(|block| **block == image(3)).count(), images);
        let texts: Vec<&str> = content.iter().filter_map(|block| block["text"].as_str()).collect();
        prop_assert!(texts.iter().all(|text| !text.is_empty()));
        if excerpt.is_cut() {
            let notice = texts.iter().position(|text| text.starts_with("\n[") && text.contains("left out here")).expect("it is said");
            let (head, tail) = (texts[..notice].concat(), texts[notice + 1..].concat());
            prop_assert!(written.starts_with(&head) && written.ends_with(&tail));
            prop_assert!(head.len() <= inline_bytes / 4 && head.len() + tail.len() <= inline_bytes && !tail.is_empty());
            let left_out = written.len() - head.len() - tail.len();
            let said = format!("[{left_out} of {} bytes", written.len());
            prop_assert!(texts[notice].contains(&said));
        } else {
            prop_assert_eq!(texts.concat(), written);
        }
    }
}
