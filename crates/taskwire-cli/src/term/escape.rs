//! Makes text from elsewhere harmless for a terminal: no server can move the cursor, retitle the window or hide text.

/// The longest colour sequence that is recognised.
const SEQUENCE_BYTES_MAX: usize = 64;

/// Escapes text for one line: line breaks and tabs become blanks, other control characters become visible.
pub(crate) fn line(text: &str) -> String {
    let text = text.trim_end_matches(['\n', '\r']);
    text.chars().fold(String::with_capacity(text.len()), |mut line, c| {
        match c {
            '\n' | '\r' | '\t' => line.push(' '),
            c => push(&mut line, c),
        }
        line
    })
}

/// Escapes each line of a text: only line breaks keep their effect.
pub(crate) fn lines(text: &str) -> String {
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Whether a character beyond ASCII acts instead of being seen: control characters, those that change the direction of writing, and those
/// that end a line.
fn is_hidden(c: char) -> bool {
    matches!(c, '\u{80}'..='\u{9f}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes JSON for a terminal: control characters can only be within its strings, where they can be written otherwise.
pub(crate) fn json(text: String) -> String {
    let does_something = |c: char| c == '\x7f' || is_hidden(c);
    if !text.contains(does_something) {
        return text;
    }
    text.chars().fold(String::with_capacity(text.len() + 16), |mut json, c| {
        if does_something(c) {
            json.push_str(&format!("\\u{:04x}", c as u32));
        } else {
            json.push(c);
        }
        json
    })
}

/// Adds a character as it is, or in a visible form.
fn push(text: &mut String, c: char) {
    match c {
        '\0'..='\x1f' | '\x7f' => text.extend(['^', char::from(c as u8 ^ 0x40)]),
        c if is_hidden(c) => text.extend(c.escape_unicode()),
        c => text.push(c),
    }
}

/// Filters the output of a tool for a terminal, piece by piece: text, line breaks, tabs and colours pass, nothing else.
#[derive(Debug)]
pub(crate) struct Filter {
    /// Whether colours pass; if not, they are left out.
    colours: bool,
    /// Whether a colour passed that was not reset.
    is_coloured: bool,
    /// A sequence that has begun and not ended.
    pending: String,
}

impl Filter {
    pub(crate) fn new(colours: bool) -> Self {
        Self { colours, is_coloured: false, pending: String::new() }
    }

    /// The part of this piece that may be written.
    pub(crate) fn pass(&mut self, piece: &str) -> String {
        let mut text = String::with_capacity(piece.len());
        for c in piece.chars() {
            self.take(c, &mut text);
        }
        text
    }

    /// Whether something is pending that the next piece decides about.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// What is still pending at the end.
    pub(crate) fn end(&mut self) -> String {
        let mut text = String::new();
        self.flush_pending(&mut text);
        if std::mem::take(&mut self.is_coloured) {
            text.push_str("\x1b[0m");
        }
        text
    }

    fn take(&mut self, c: char, text: &mut String) {
        match (self.pending.len(), c) {
            (0, '\x1b') | (1, '[') | (2..SEQUENCE_BYTES_MAX, '0'..='9' | ';' | ':') => self.pending.push(c),
            (2.., 'm') => {
                let sequence = std::mem::take(&mut self.pending);
                if self.colours {
                    self.is_coloured = !matches!(&sequence[2..], "" | "0");
                    text.push_str(&sequence);
                    text.push(c);
                }
            }
            (0, '\n' | '\t' | '\r') => text.push(c),
            (0, c) => push(text, c),
            _ => {
                self.flush_pending(text);
                self.take(c, text);
            }
        }
    }

    /// What is pending is no colour: it is shown in a visible form.
    fn flush_pending(&mut self, text: &mut String) {
        for c in std::mem::take(&mut self.pending).chars() {
            push(text, c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_a_message_are_seen_and_do_nothing() {
        assert_eq!(line("a\x1b[2Jb\u{9b}31m\x07\x7f"), "a^[[2Jb\\u{9b}31m^G^?");
        assert_eq!(line("one\ntwo\r\n\tthree\n"), "one two   three");
        assert_eq!(line("file\u{202e}gnp.exe"), "file\\u{202e}gnp.exe");
        assert_eq!(lines("one\n\x1b]0;title\x07two\n"), "one\n^[]0;title^Gtwo");
        assert_eq!(line("grüße, 世界"), "grüße, 世界");
        assert_eq!(line("a\u{200f}\u{61c}b\u{2028}c"), "a\\u{200f}\\u{61c}b\\u{2028}c");
    }

    #[test]
    fn json_means_the_same_and_does_nothing() {
        let text = serde_json::json!({"a": "x\u{9b}31m\u{7f}\u{202e}ü\u{2066}"}).to_string();
        let shown = json(text.clone());
        assert_eq!(shown, "{\"a\":\"x\\u009b31m\\u007f\\u202eü\\u2066\"}");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(read(&shown), read(&text));
    }

    #[test]
    fn output_keeps_its_colours_and_nothing_else_also_when_cut_anywhere() {
        let text = "a\x1b[1;31mred\x1b[0m\tb\r\n\x1b[2J\x1b]0;t\x07\x1b[38:5:1mx\x1bm\x1b[12";
        let expected = "a\x1b[1;31mred\x1b[0m\tb\r\n^[[2J^[]0;t^G\x1b[38:5:1mx^[m^[[12\x1b[0m";
        let whole = {
            let mut filter = Filter::new(true);
            filter.pass(text) + &filter.end()
        };
        assert_eq!(whole, expected);
        for cut in 0..=text.len() {
            let mut filter = Filter::new(true);
            let parts = filter.pass(&text[..cut]) + &filter.pass(&text[cut..]) + &filter.end();
            assert_eq!(parts, expected, "cut at {cut}");
        }
    }

    #[test]
    fn without_colours_they_are_left_out() {
        let mut filter = Filter::new(false);
        assert_eq!(filter.pass("\x1b[31mred\x1b[0m\x1b[H"), "red^[[H");
        assert_eq!(filter.end(), "");
    }

    #[test]
    fn a_sequence_without_an_end_is_not_held_for_ever() {
        let mut filter = Filter::new(true);
        let text = format!("\x1b[{}", "1".repeat(1000));
        assert!(filter.pass(&text).len() > 900);
    }
}
