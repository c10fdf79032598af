//! Tests of the output parser, above all that cuts and restarts change nothing.

use proptest::prelude::*;

use super::*;

const LINE_BYTES: usize = 48;

fn settings() -> OutputSettings {
    OutputSettings {
        format: Format::Text,
        stderr: Stderr::Apart,
        progress: None,
        redact: Vec::new(),
        ok_codes: vec![0],
        inline_bytes: 1024,
        on_interrupt: OnInterrupt::Fail,
        attempts_max: 1,
        line_bytes: LINE_BYTES,
    }
}

fn redacting(pattern: &str) -> OutputSettings {
    OutputSettings { redact: vec![pattern.to_owned()], ..settings() }
}

fn counting() -> OutputSettings {
    OutputSettings { progress: Some(r"(?<done>\d+)/(?<total>\d+)(?: (?<message>.+))?|(?<percent>[\d.]+)%".to_owned()), ..settings() }
}

fn json_lines() -> OutputSettings {
    OutputSettings { format: Format::Jsonl, ..settings() }
}

fn parser(settings: &OutputSettings) -> OutputParser {
    OutputParser::new(settings).expect("the settings are right")
}

fn text(text: &str) -> OutputItem {
    OutputItem::Text(text.to_owned())
}

fn progress(done: f64, total: Option<f64>, message: Option<&str>) -> OutputItem {
    OutputItem::Progress { done, total, message: message.map(str::to_owned) }
}

#[test]
fn text_goes_out_at_once_and_only_an_unfinished_character_is_held() {
    let mut parser = parser(&settings());
    assert_eq!(parser.feed(Stream::Out, b"no line end \xe2\x82"), [text("no line end ")]);
    assert_eq!(parser.pending_bytes(Stream::Out), 2);
    assert_eq!(parser.feed(Stream::Out, b"\xac\0"), [text("€\0")]);
    assert_eq!(parser.pending_bytes(Stream::Out), 0);
    assert_eq!(parser.feed(Stream::Out, b"\xff\xe2\x82x"), [text("\u{fffd}\u{fffd}x")], "what can become nothing is not waited for");
    assert_eq!(parser.feed(Stream::Out, b""), []);
}

#[test]
fn what_was_held_comes_at_the_end_and_only_once() {
    let mut parser = parser(&settings());
    parser.feed(Stream::Out, b"\xf0\x9f\xa6");
    parser.feed(Stream::Err, b"\xc3");
    let stderr = json!({"type": "text", "text": "\u{fffd}", "_meta": {"dev.taskwire/stream": "stderr"}});
    assert_eq!(parser.finish(), [text("\u{fffd}"), OutputItem::Block(stderr)]);
    assert_eq!((parser.pending_bytes(Stream::Out), parser.pending_bytes(Stream::Err)), (0, 0));
    assert_eq!(parser.finish(), []);
}

#[test]
fn standard_error_is_a_block_apart_or_text_or_nothing() {
    let parsed = |stderr| parser(&OutputSettings { stderr, ..settings() }).feed(Stream::Err, b"oops");
    assert_eq!(
        parsed(Stderr::Apart),
        [OutputItem::Block(json!({"type": "text", "text": "oops", "_meta": {"dev.taskwire/stream": "stderr"}}))]
    );
    assert_eq!(parsed(Stderr::Together), [text("oops")]);
    assert_eq!(parsed(Stderr::Drop), []);
}

#[test]
fn the_two_streams_hold_their_own_bytes() {
    let mut parser = parser(&settings());
    assert_eq!(parser.feed(Stream::Out, b"\xc3"), []);
    assert_eq!(parser.feed(Stream::Err, b"\xe2\x82"), []);
    assert_eq!((parser.pending_bytes(Stream::Out), parser.pending_bytes(Stream::Err)), (1, 2));
    assert_eq!(parser.feed(Stream::Out, b"\xa9"), [text("é")]);
}

#[test]
fn a_secret_that_comes_in_parts_is_never_seen() {
    let mut parser = parser(&redacting("hunter[0-9]"));
    assert_eq!(parser.feed(Stream::Out, b"password: hun"), []);
    assert_eq!(parser.pending_bytes(Stream::Out), 13);
    assert_eq!(parser.feed(Stream::Out, b"ter2\r"), [text("password: [redacted]\r")]);
    assert_eq!(parser.feed(Stream::Out, b"\nhunter3"), [text("\n")]);
    assert_eq!(parser.finish(), [text("[redacted]")]);
}

#[test]
fn a_secret_with_a_colour_in_it_is_never_seen() {
    let mut seen = parser(&redacting("hunter[0-9]"));
    assert_eq!(seen.feed(Stream::Out, b"key=\x1b[31mhunter\x1b[m2\n"), [text("key=[redacted]\n")]);
    assert_eq!(seen.feed(Stream::Out, b"\x1b[31mhunter2\x1b[m\n"), [text("\u{1b}[31m[redacted]\u{1b}[m\n")], "others stay as they are");
    assert_eq!(seen.feed(Stream::Out, b"\x1b[31mred\x1b[m\n"), [text("\u{1b}[31mred\u{1b}[m\n")]);
    let mut lines = parser(&OutputSettings { redact: vec!["hunter[0-9]".to_owned()], ..json_lines() });
    let block = json!({"type": "text", "text": "hun\u{1b}[1mter2"});
    let items = lines.feed(Stream::Out, format!("{block}\n").as_bytes());
    assert_eq!(items, [OutputItem::Block(json!({"type": "text", "text": "[redacted]"}))]);
}

#[test]
fn an_expression_that_matches_nothing_at_all_hides_nothing_at_all() {
    assert_eq!(parser(&redacting("x*")).feed(Stream::Out, b"\nabc\n"), [text("\nabc\n")]);
}

#[test]
fn a_line_that_is_too_long_goes_out_in_pieces_and_redacted() {
    let mut parser = parser(&redacting("secret"));
    let mut long = b"secret".to_vec();
    long.resize(LINE_BYTES / 2 - 2, b'x');
    long.extend("é".repeat(LINE_BYTES / 2).as_bytes());
    assert_eq!(long.len(), 70);
    let shown = format!("[redacted]{}{}", "x".repeat(LINE_BYTES / 2 - 8), "é");
    assert_eq!(parser.feed(Stream::Out, &long), [text(&shown)], "half of what may be pending goes out, and no character is cut in two");
    assert_eq!(parser.pending_bytes(Stream::Out), 46);
    let rest = format!("{} [redacted]\n", "é".repeat(LINE_BYTES / 2 - 1));
    assert_eq!(seen(parser.feed(Stream::Out, b" secret\n")), [text(&rest)]);
}

/// All text, of either stream.
fn text_of(items: Vec<OutputItem>) -> String {
    let text = |one| match one {
        OutputItem::Text(text) => text,
        OutputItem::Block(block) => block["text"].as_str().expect("text").to_owned(),
        other => panic!("there is nothing but text: {other:?}"),
    };
    items.into_iter().map(text).collect()
}

#[test]
fn a_secret_across_the_cuts_of_a_long_line_is_never_seen_wherever_it_lies() {
    for (pattern, secret, hidden) in [
        ("key=[a-z]+", "key=abcdefgh", "[redacted]"),
        ("se+cret", "seeeeeeeeecret", "[redacted]"),
        ("(?:é€){3}", "é€é€é€", "[redacted]"),
        (r"\Bfoo\B", "xfoox", "x[redacted]x"),
        ("hunter[0-9]", "hun\u{1b}[31mter\u{1b}[m2", "[redacted]"),
    ] {
        let mut parser = parser(&redacting(pattern));
        for stream in [Stream::Out, Stream::Err] {
            for (at, step) in (0..3 * LINE_BYTES).zip([1, 7, 1000].into_iter().cycle()) {
                let (before, behind) = (".".repeat(at), ".".repeat(2 * LINE_BYTES));
                let mut items = fed(&mut parser, stream, format!("{before}{secret}{behind}\n").as_bytes(), step);
                items.extend(parser.finish());
                assert_eq!(text_of(items), format!("{before}{hidden}{behind}\n"), "{pattern} at {at}");
            }
        }
    }
}

#[test]
fn of_a_secret_that_is_longer_than_what_may_be_held_the_rest_of_the_line_is_hidden() {
    for (before, step) in [("", 1), ("", 1000), ("ab ", 5), ("\u{ff}", 1000)] {
        let mut parser = parser(&redacting("key=[a-z]+"));
        let line = format!("{before}key={} and more\nnext\n", "x".repeat(10 * LINE_BYTES));
        let mut items = fed(&mut parser, Stream::Out, line.as_bytes(), step);
        items.extend(parser.finish());
        assert_eq!(seen(items), [text(&format!("{before}[redacted]\nnext\n"))]);
    }
}

#[test]
fn many_short_secrets_in_a_long_line_are_hidden_one_by_one() {
    let mut parser = parser(&redacting("Q"));
    let line = format!("{}\n", "Q".repeat(5 * LINE_BYTES));
    assert_eq!(text_of(parser.feed(Stream::Out, line.as_bytes())), format!("{}\n", "[redacted]".repeat(5 * LINE_BYTES)));
}

#[test]
fn where_the_streams_go_together_each_has_its_own_lines() {
    let mut parser = parser(&OutputSettings { stderr: Stderr::Together, ..redacting("secret") });
    assert_eq!(parser.feed(Stream::Out, b"key=sec"), []);
    assert_eq!(parser.feed(Stream::Err, b"a warning\n"), [text("a warning\n")]);
    assert_eq!(parser.feed(Stream::Out, b"ret\n"), [text("key=[redacted]\n")]);
}

#[test]
fn a_line_of_just_the_most_bytes_is_still_one_line() {
    let mut parser = parser(&redacting("x$"));
    let line = "x".repeat(LINE_BYTES);
    assert_eq!(parser.feed(Stream::Out, line.as_bytes()), []);
    assert_eq!(parser.feed(Stream::Out, b"\n"), [text(&format!("{}[redacted]\n", "x".repeat(LINE_BYTES - 1)))]);
}

#[test]
fn what_a_command_reports_is_redacted_too() {
    let mut parser = parser(&redacting("(?i)^token.*$|c2VjcmV0"));
    let parsed = |note: Note, parser: &mut OutputParser| parser.note(note).remove(0);
    let note = Note::Progress { done: 1.0, total: None, message: Some("TOKEN abc".to_owned()) };
    assert_eq!(parsed(note, &mut parser), progress(1.0, None, Some("[redacted]")));
    assert_eq!(
        parsed(Note::Status { message: "a\r\ntoken b\r\nc".to_owned() }, &mut parser),
        OutputItem::Status("a\r\n[redacted]\r\nc".to_owned())
    );
    let image = json!({"type": "image", "data": "c2VjcmV0", "mimeType": "image/png", "_meta": {"why": ["token"]}});
    let shown = json!({"type": "image", "data": "c2VjcmV0", "mimeType": "image/png", "_meta": {"why": ["[redacted]"]}});
    assert_eq!(parsed(Note::Block { block: image }, &mut parser), OutputItem::Block(shown), "encoded bytes stay whole");
    let structured = json!({"token a": "x", "token b": ["y", "token"], "type": "token", "n": 1});
    let OutputItem::Result { structured, is_error: true, content: None } = parsed(Note::Result { structured, is_error: true }, &mut parser)
    else {
        panic!("a result is one")
    };
    assert_eq!(structured, json!({"[redacted]": "x", "[redacted] 3": ["y", "[redacted]"], "type": "[redacted]", "n": 1}));
}

#[test]
fn a_number_can_be_a_secret_too() {
    let mut parser = parser(&OutputSettings { line_bytes: 4096, redact: vec!["4242".to_owned()], ..json_lines() });
    let value = json!({"pin": 4242, "deep": [14_242_000, {"-": -4.4242}, 42, null, true]});
    let shown = json!({"pin": "[redacted]", "deep": ["[redacted]", {"-": "[redacted]"}, 42, null, true]});
    let expected = || OutputItem::Result { structured: shown.clone(), is_error: false, content: None };
    assert_eq!(parser.note(Note::Result { structured: value.clone(), is_error: false }), [expected()]);
    assert_eq!(parser.feed(Stream::Out, format!("{}\n", json!({"result": value})).as_bytes()), [expected()]);
}

#[test]
fn a_question_shows_no_secret_and_can_still_be_answered() {
    let parser = parser(&redacting(r"sk-\w+"));
    let schema = json!({"type": "object", "title": "sk-a form", "properties": {
        "word": {"type": "string", "title": "the sk-b", "description": "sk-c is it", "enum": ["sk-d", "e"]},
        "title": {"type": "string", "description": "sk-f"},
        "many": {"type": "array", "items": {"anyOf": [{"const": "sk-g", "title": "sk-h"}]}},
    }});
    let shown = json!({"type": "object", "title": "[redacted] form", "properties": {
        "word": {"type": "string", "title": "the [redacted]", "description": "[redacted] is it", "enum": ["sk-d", "e"]},
        "title": {"type": "string", "description": "[redacted]"},
        "many": {"type": "array", "items": {"anyOf": [{"const": "sk-g", "title": "[redacted]"}]}},
    }});
    let asked = parser.redact_question(Question { message: "Use sk-1 or sk-2?".to_owned(), schema: Some(schema.into()), url: None });
    assert_eq!(asked.message, "Use [redacted] or [redacted]?");
    assert_eq!(asked.schema.expect("a form").read::<Value>().expect("JSON"), shown);
}

#[test]
fn the_form_of_a_question_without_secrets_is_left_as_it_was_written() {
    let written = r#"{"type": "object",  "properties": {"b": {"type": "string"}, "a": {"type": "string"}}}"#;
    let schema: taskwire_core::Payload = serde_json::from_str(written).expect("JSON");
    let question = Question { message: "q".to_owned(), schema: Some(schema), url: None };
    let parser = parser(&redacting("secret"));
    assert_eq!(parser.redact_question(question.clone()), question, "its fields are in the same order");
    assert_eq!(parser.redact_text("cannot run `secret-program`"), "cannot run `[redacted]-program`");
}

#[test]
fn of_a_total_of_nothing_nobody_is_told() {
    let items = parser(&settings()).note(Note::Progress { done: 5.0, total: Some(0.0), message: None });
    assert_eq!(items, [progress(5.0, None, None)]);
}

#[test]
fn a_block_that_is_none_is_shown_as_text() {
    let items = parser(&settings()).note(Note::Block { block: json!({"type": "image"}) });
    assert_eq!(items, [text("{\"type\":\"image\"}\n")]);
}

#[test]
fn a_message_is_cut_to_a_length_that_fits_everywhere() {
    let items = parser(&settings()).note(Note::Status { message: "é".repeat(5000) });
    let [OutputItem::Status(message)] = &items[..] else { panic!("one status: {items:?}") };
    assert!(message.len() <= MESSAGE_BYTES && message.len() > MESSAGE_BYTES - 8 && message.ends_with("é…"));
}

#[test]
fn progress_is_found_in_whole_lines_and_only_the_last_is_given_out() {
    let mut parser = parser(&counting());
    assert_eq!(parser.feed(Stream::Out, b"12/2"), [text("12/2")], "the line is not complete");
    assert_eq!(parser.feed(Stream::Out, b"0 unpacking\n"), [text("0 unpacking\n"), progress(12.0, Some(20.0), Some("unpacking"))]);
    assert_eq!(parser.feed(Stream::Out, b"13/20\r14/20\rno\n15"), [text("13/20\r14/20\rno\n15"), progress(14.0, Some(20.0), None)]);
    assert_eq!(parser.feed(Stream::Out, b".5%\r\n"), [text(".5%\r\n"), progress(15.5, Some(100.0), None)]);
    parser.feed(Stream::Out, b"99%");
    assert_eq!(parser.finish(), [progress(99.0, Some(100.0), None)], "the end of the stream ends the line");
}

#[test]
fn progress_is_found_in_standard_error_and_in_lines_with_secrets() {
    let mut parser = parser(&OutputSettings { redact: vec!["key=[a-z]+".to_owned()], ..counting() });
    let items = parser.feed(Stream::Err, b"1/2 key=abc\n2/2 key=abc\r");
    assert_eq!(items.last(), Some(&progress(2.0, Some(2.0), Some("[redacted]"))));
    assert_eq!(items.len(), 2);
}

#[test]
fn what_is_no_number_is_no_progress() {
    let settings = OutputSettings { progress: Some("(?<done>.*) of (?<total>.*)".to_owned()), ..settings() };
    for line in ["nan of 3\n", "inf of 3\n", "-1 of 3\n", " of \n", "x of 3\n"] {
        assert_eq!(parser(&settings).feed(Stream::Out, line.as_bytes()), [text(line)]);
    }
    let items = parser(&settings).feed(Stream::Out, b" 2 of many\n");
    assert_eq!(items[1], progress(2.0, None, Some("2 of many")), "a total that is no number is not known");
    let settings = OutputSettings { progress: Some(r"(?<done>\d+)( files)?".to_owned()), ..settings };
    let items = parser(&settings).feed(Stream::Out, b"copied 5 files\n");
    assert_eq!(items[1], progress(5.0, None, Some("5 files")), "the words of the line say what is counted");
    let items = parser(&settings).feed(Stream::Out, b"copied 6\n");
    assert_eq!(items[1], progress(6.0, None, None), "a number alone says nothing");
}

#[test]
fn the_rest_of_a_line_is_not_taken_for_progress_after_a_restart() {
    let mut parser = parser(&counting()).resume([false; 2]);
    assert_eq!(parser.feed(Stream::Out, b"20/200\n"), [text("20/200\n")], "it may have been 120/200");
    assert_eq!(parser.feed(Stream::Out, b"121/200\n"), [text("121/200\n"), progress(121.0, Some(200.0), None)]);
}

#[test]
fn a_line_that_is_too_long_is_not_searched_for_progress() {
    let mut parser = parser(&counting());
    let long = format!("{} 1/2\n", "x".repeat(LINE_BYTES));
    assert_eq!(parser.feed(Stream::Out, long.as_bytes()), [text(&long)]);
    for byte in long.as_bytes() {
        assert!(!parser.feed(Stream::Out, &[*byte]).iter().any(|item| matches!(item, OutputItem::Progress { .. })));
    }
    assert_eq!(parser.feed(Stream::Out, b"1/2\n").len(), 2);
}

#[test]
fn lines_of_json_say_what_they_mean() {
    let settings = OutputSettings { line_bytes: 4096, ..json_lines() };
    let one = |line: Value| {
        let mut parser = parser(&settings);
        assert_eq!(parser.feed(Stream::Out, line.to_string().as_bytes()), [], "a line is complete when it has ended");
        let mut items = parser.feed(Stream::Out, b"\r\n");
        assert_eq!(items.len(), 1, "{line}");
        items.remove(0)
    };
    for block in [
        json!({"type": "text", "text": ""}),
        json!({"type": "image", "data": "AA==", "mimeType": "image/png", "annotations": {}}),
        json!({"type": "audio", "data": "AA==", "mimeType": "audio/wav"}),
        json!({"type": "resource", "resource": {"uri": "a:b", "blob": "AA=="}}),
        json!({"type": "resource_link", "uri": "a:b", "name": "b"}),
    ] {
        assert_eq!(one(block.clone()), OutputItem::Block(block));
    }
    assert_eq!(one(json!({"progress": 3})), progress(3.0, None, None));
    assert_eq!(one(json!({"progress": 3, "total": 4.5, "message": "m"})), progress(3.0, Some(4.5), Some("m")));
    assert_eq!(one(json!({"status": "busy"})), OutputItem::Status("busy".to_owned()));
    assert_eq!(one(json!({"result": null})), OutputItem::Result { structured: Value::Null, is_error: false, content: None });
    let content = vec![json!({"type": "text", "text": "x"})];
    let item = one(json!({"result": [1], "isError": true, "content": content}));
    assert_eq!(item, OutputItem::Result { structured: json!([1]), is_error: true, content: Some(content) });
}

#[test]
fn lines_that_only_look_like_it_stay_text() {
    for line in [
        r#"{"type":"image","data":"AA=="}"#,
        r#"{"type":"resource","resource":{"uri":"a:b"}}"#,
        r#"{"type":"video"}"#,
        r#"{"progress":"3"}"#,
        r#"{"progress":1e999}"#,
        r#"{"status":"ok","level":"info"}"#,
        r#"{"result":1,"content":[{}]}"#,
        r#"{"result":1,"isError":"no"}"#,
        r#"{"status":"x"} "#.repeat(2).as_str(),
        r#"["status"]"#,
        "{",
        "  ",
        "null",
    ] {
        let line = format!("{line}\n");
        assert_eq!(parser(&json_lines()).feed(Stream::Out, line.as_bytes()), [text(&line)]);
    }
}

#[test]
fn lines_of_json_come_in_order_and_empty_ones_are_dropped() {
    let mut parser = parser(&OutputSettings { redact: vec!["se+cret".to_owned()], ..json_lines() });
    let items = parser.feed(
        Stream::Out,
        b"\r\nsecret\r\nb\n\n{\"progress\":1}\n{\"status\":\"seecret\"}\n{\"progress\":2}\n{\"status\":\"s\\u0065cret\"}",
    );
    let status = || OutputItem::Status("[redacted]".to_owned());
    assert_eq!(items, [text("[redacted]\r\nb\n"), status(), progress(2.0, None, None)]);
    assert_eq!(parser.finish(), [status()], "the last line needs no end, and a secret cannot hide behind an escape");
}

#[test]
fn a_line_of_json_that_is_too_long_goes_out_as_text() {
    let mut parser = parser(&json_lines());
    let line = format!("{{\"status\":\"{}\"}}\n", "x".repeat(LINE_BYTES));
    let mut items = parser.feed(Stream::Out, line.as_bytes());
    items.extend(parser.finish());
    assert_eq!(items, [text(&line)]);
}

#[test]
fn an_expression_that_is_none_is_named() {
    let problem = |settings: OutputSettings| OutputParser::new(&settings).expect_err("it is refused");
    assert!(problem(redacting("(")).contains("`(` in `redact`"));
    assert!(problem(OutputSettings { progress: Some("[".to_owned()), ..settings() }).contains("`progress`"));
}

/// What a client sees in the end: joined text, and no progress, since some of it may be left out.
fn seen(items: Vec<OutputItem>) -> Vec<OutputItem> {
    let mut seen: Vec<OutputItem> = Vec::new();
    for one in items {
        match (one, seen.last_mut()) {
            (OutputItem::Progress { .. }, _) => {}
            (OutputItem::Text(text), last) => match last {
                Some(OutputItem::Text(before)) => before.push_str(&text),
                _ => seen.push(OutputItem::Text(text)),
            },
            (OutputItem::Block(block), Some(OutputItem::Block(before)))
                if block["_meta"].is_object() && block["_meta"] == before["_meta"] =>
            {
                let joined = format!("{}{}", before["text"].as_str().expect("text"), block["text"].as_str().expect("text"));
                before["text"] = Value::String(joined);
            }
            (one, _) => seen.push(one),
        }
    }
    seen
}

/// Makes the parser like a new one, without compiling the rules again.
fn anew(parser: &mut OutputParser) {
    parser.pipes = Default::default();
}

fn fed(parser: &mut OutputParser, stream: Stream, bytes: &[u8], step: usize) -> Vec<OutputItem> {
    bytes.chunks(step).flat_map(|part| parser.feed(stream, part)).collect()
}

const PARTS: &[&[u8]] = &[
    b"a",
    b" ",
    b"\0",
    b"\n",
    b"\n",
    b"\r",
    b"\r\n",
    "é".as_bytes(),
    "€".as_bytes(),
    "🦀".as_bytes(),
    b"\xff",
    b"\x80",
    b"\xc0",
    b"\xe2\x82",
    b"\xf0\x9f",
    b"\xf0\x9f\xa6",
    b"\xed\xa0\x80",
    b"sec",
    b"ret",
    b"secret",
    b"3/10",
    b"40%",
    b"{",
    b"{\"status\":\"secret\"}",
    b"{\"progress\":1}\n",
    b"{\"type\":\"text\",\"text\":\"a secret\"}\n",
    b"{\"result\":{\"secret\":\"\xc3\xa9\"}}",
    b"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
];

fn output() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(proptest::sample::select(PARTS), 0..30).prop_map(|parts| parts.concat())
}

fn ways() -> Vec<OutputSettings> {
    let secret = vec!["secret".to_owned(), "^ret".to_owned()];
    let all = counting().progress;
    vec![
        settings(),
        counting(),
        redacting("secret"),
        OutputSettings { redact: secret.clone(), progress: all.clone(), ..settings() },
        json_lines(),
        OutputSettings { redact: secret, progress: all, ..json_lines() },
        redacting("x+"),
        OutputSettings { redact: vec!["a?x+".to_owned()], ..json_lines() },
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn cuts_and_restarts_at_any_byte_change_nothing(bytes in output(), step in 1usize..12) {
        for settings in ways() {
            let mut parser = parser(&settings);
            for stream in [Stream::Out, Stream::Err] {
                anew(&mut parser);
                let mut expected = parser.feed(stream, &bytes);
                expected.extend(parser.finish());
                let expected = seen(expected);
                for at in 0..=bytes.len() {
                    anew(&mut parser);
                    let mut items = fed(&mut parser, stream, &bytes[..at], step);
                    let pending = usize::try_from(parser.pending_bytes(stream)).expect("it fits");
                    let hidden = parser.hidden();
                    prop_assert!(pending <= at && pending <= LINE_BYTES);

                    // One parser goes on; a new one begins with the first pending byte.
                    let mut on = items.clone();
                    on.extend(parser.feed(stream, &bytes[at..]));
                    on.extend(parser.finish());
                    prop_assert_eq!(&seen(on), &expected);
                    anew(&mut parser);
                    parser = parser.resume(hidden);
                    items.extend(fed(&mut parser, stream, &bytes[at - pending..], step));
                    items.extend(parser.finish());
                    prop_assert_eq!(&seen(items), &expected);
                }
            }
        }
    }

    #[test]
    fn without_secrets_all_text_is_there_and_what_is_not_is_held(bytes in output(), step in 1usize..12) {
        for settings in [settings(), counting(), redacting("never there")] {
            let mut parser = parser(&settings);
            let shown = |items: Vec<OutputItem>, upto: usize| {
                let text = String::from_utf8_lossy(&bytes[..upto]).into_owned();
                let only_text = |one| if let OutputItem::Text(text) = one { text } else { panic!("there is nothing but text") };
                let all: String = seen(items).into_iter().map(only_text).collect();
                (all, text)
            };
            let mut items = fed(&mut parser, Stream::Out, &bytes, step);
            let pending = usize::try_from(parser.pending_bytes(Stream::Out)).expect("it fits");
            prop_assert!(pending < 4 || !settings.redact.is_empty());
            let (all, text) = shown(items.clone(), bytes.len() - pending);
            prop_assert_eq!(all, text);
            items.extend(parser.finish());
            let (all, text) = shown(items, bytes.len());
            prop_assert_eq!(all, text);
        }
    }
}
