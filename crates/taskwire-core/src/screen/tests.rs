//! Tests of text as a terminal shows it.

use proptest::prelude::*;

use super::*;

/// The same text, fed in parts of so many characters.
fn in_parts(text: &str, part: usize) -> String {
    let (mut screen, mut out) = (Screen::default(), String::new());
    let chars: Vec<char> = text.chars().collect();
    for some in chars.chunks(part.max(1)) {
        screen.feed(&some.iter().collect::<String>(), &mut out);
    }
    screen.finish(&mut out);
    out
}

#[test]
fn a_line_that_is_drawn_over_is_what_was_drawn_last() {
    for (text, seen) in [
        ("10%\r20%\r100%\n", "100%\n"),
        ("10%\r20%\r", "20%"),
        ("long line\rshort\n", "shortline\n"),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("blanks stay  \r\n", "blanks stay  \n"),
        ("one\r\r\n", "one\n"),
        ("working...\r          \rdone\n", "done\n"),
        ("\rat once\n", "at once\n"),
        ("é€🦀\rabc\n", "abc\n"),
        ("abc\ré\n", "ébc\n"),
    ] {
        assert_eq!(render(text), seen, "{text:?}");
    }
}

#[test]
fn what_is_erased_is_gone() {
    for (text, seen) in [
        ("10 of 100\r\x1b[Kdone\n", "done\n"),
        ("10 of 100\r9\x1b[0K\n", "9\n"),
        ("spinning |\x1b[2K\rdone\n", "done\n"),
        ("spinning |\x1b[2K\x1b[1Gdone\n", "done\n"),
        ("abcdef\x1b[3D\x1b[1K\n", "    ef\n"),
        ("abc\x08\x08X\n", "aXc\n"),
        ("abc\x08 \x08\n", "ab\n"),
        ("b\x08bo\x08ol\x08ld\x08d and _\x08u\n", "bold and u\n"),
        ("\x08\x08a\n", "a\n"),
    ] {
        assert_eq!(render(text), seen, "{text:?}");
    }
}

#[test]
fn lines_above_are_drawn_over_too() {
    let mut text = String::from("pulling\n");
    for n in 0..100 {
        if n > 0 {
            text.push_str("\x1b[2A");
        }
        text.push_str(&format!("\r\x1b[2Kfirst {n}%\n\r\x1b[2Ksecond {n}%\n"));
    }
    text.push_str("pulled\n");
    assert_eq!(render(&text), "pulling\nfirst 99%\nsecond 99%\npulled\n");
    assert_eq!(render("a\nb\nc\x1b[1Fx\n\x1b[Jy"), "a\nx\ny");
    assert_eq!(render("a\nb\nc\x1b[9Ax"), "ax\nb\nc", "as far up as there is something, in the same column");
    assert_eq!(render("a\nb\x1b[1A\x1b[J!"), "a!");
    assert_eq!(render("a\nb\x1b[1A\x1b[9E!"), "a\n!");
}

#[test]
fn colours_titles_and_the_like_are_not_seen() {
    for (text, seen) in [
        ("\x1b[1;31merror\x1b[0m: no\x1b[38;5;12mpe\x1b[m\n", "error: nope\n"),
        ("\x1b[38:2::1:2:3mtrue\x1b[K\x1b[m colour\n", "true colour\n"),
        ("\x1b]0;a title\x07text\n", "text\n"),
        ("\x1b]8;;https://example.com/\x1b\\a link\x1b]8;;\x1b\\ in text\n", "a link in text\n"),
        ("\x1b(B\x1b)0\x1b#8text\x1b7\x1b8\x1b=\x1b>\n", "text\n"),
        ("\x1b[?25l\x1b[?1049hhidden cursor\x1b[?25h\n", "hidden cursor\n"),
        ("\x1bP1$r0m\x1b\\text\x1b_words\x1b\\!\n", "text!\n"),
        ("ring\x07 \x0e\x0fshift\n", "ring shift\n"),
        ("\x1b[31", ""),
        ("\x1b", ""),
        ("\x1b\x1b[1mtwice\n", "twice\n"),
        ("\x1b[3\nbroken off\n", "\nbroken off\n"),
        ("\x1b[3é\n", "é\n"),
        ("\x1b]0;never ended\nthe next line\n", "\nthe next line\n"),
        ("\x1b]0;ended by another\x1b[1mtext\n", "text\n"),
    ] {
        assert_eq!(render(text), seen, "{text:?}");
    }
}

#[test]
fn a_gap_is_one_blank_and_the_whole_screen_is_not_cleared() {
    assert_eq!(render("Starting x\x1b[60G[ OK ]\n"), "Starting x [ OK ]\n");
    assert_eq!(render("Starting x\x1b[999C\x1b[8D[ OK ]\n"), "Starting x [ OK ]\n");
    assert_eq!(render("a\x1b[3Cb\x1b[2Gx\n"), "axb\n");
    assert_eq!(render("a\x1b[999999999999999999999999Cb\n"), "a b\n");
    assert_eq!(render("one\n\x1b[H\x1b[2Jtwo\x1b[3;4Hthree\n"), "one\ntwo\nthree\n");
}

#[test]
fn progress_of_a_copy_is_a_line_for_each_file() {
    let mut text = String::from("sending incremental file list\n");
    for file in 0..3 {
        text.push_str(&format!("file {file}\n"));
        for percent in 0..=100 {
            text.push_str(&format!("\r     {:>9} {percent:>3}%   31.25MB/s    0:00:{:02}", percent * 32_768, (100 - percent).min(99)));
        }
        text.push('\n');
    }
    let seen = render(&text);
    assert_eq!(seen.lines().count(), 7, "{seen}");
    assert!(seen.len() < 300 && text.len() > 10_000, "{} of {}", seen.len(), text.len());
    assert!(seen.ends_with("3276800 100%   31.25MB/s    0:00:00\n"), "{seen}");
}

#[test]
fn what_it_keeps_is_bounded_whatever_comes() {
    let (mut screen, mut out) = (Screen::default(), String::new());
    let kept = |screen: &Screen| screen.rows.iter().map(|row| row.text.len()).sum::<usize>();
    for text in ["x".repeat(100_000), "a line\n".repeat(100_000), "y".repeat(3000) + "\n", "\x1b[99A\rz".repeat(10_000), "\x1b[9".repeat(9)]
    {
        for _ in 0..10 {
            screen.feed(&text, &mut out);
            assert!(kept(&screen) <= WINDOW_BYTES + LINE_BYTES && screen.rows.len() <= ROWS, "{} bytes", kept(&screen));
            assert_eq!(kept(&screen), screen.bytes);
        }
    }
    assert!(out.len() > 1_000_000, "and what is too much for it is given out: {}", out.len());
}

#[test]
fn a_sequence_that_began_before_is_known() {
    let mut out = String::new();
    let mut screen = Screen::after("so far\n\x1b[3");
    screen.feed("1mred\x1b[0m\n", &mut out);
    screen.finish(&mut out);
    assert_eq!(out, "red\n");
}

/// Text with much of what moves and hides in it.
fn drawn() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => "[a-cé€🦀 \t]{0,12}",
        3 => Just("\n".to_owned()),
        2 => Just("\r".to_owned()),
        1 => Just("\r\n".to_owned()),
        1 => Just("\x08".to_owned()),
        1 => Just("\x07".to_owned()),
        2 => (0u8..12, "[ABCDEFGHJKmhlsu]").prop_map(|(n, end)| format!("\x1b[{n}{end}")),
        1 => "[ABCDEFGHJKm]".prop_map(|end| format!("\x1b[{end}")),
        1 => "\x1b[\\[\\]()PM78_]?[0-9;?]{0,4}",
        1 => Just("\x1b]8;;x\x1b\\".to_owned()),
        1 => (0usize..3000).prop_map(|n| "long ".repeat(n)),
        1 => (0usize..100).prop_map(|n| "line\n".repeat(n)),
    ];
    proptest::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn cut_anywhere_it_is_the_same(text in drawn(), part in 1usize..5000) {
        prop_assert_eq!(in_parts(&text, part), render(&text));
    }

    #[test]
    fn it_is_never_longer_has_no_controls_and_does_not_change_again(text in drawn()) {
        let seen = render(&text).into_owned();
        prop_assert!(seen.len() <= text.len(), "{} of {}", seen.len(), text.len());
        prop_assert!(!seen.contains(is_control));
        prop_assert_eq!(in_parts(&seen, 7), seen.clone());
        prop_assert_eq!(seen.len() < text.len(), seen != text, "a change makes it shorter");
    }

    #[test]
    fn plain_text_stays_as_it_is(text in "[\\PC\n\t\0]{0,300}", part in 1usize..40) {
        prop_assert_eq!(in_parts(&text, part), text);
    }
}
