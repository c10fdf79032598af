//! Renders text as a terminal shows it: of a line that was drawn over only the last drawing stays, and codes for colours are removed.
//!
//! Programs draw progress by going back in a line, or a few lines up, and writing again. Such text has every drawing, thousands of times
//! what a person sees. A [`Screen`] takes it in parts that may be cut anywhere, and outputs the lines that are there in the end. What it
//! keeps is bounded, in lines (`ROWS`), in bytes (`WINDOW_BYTES`) and in bytes of one line (`LINE_BYTES`); what is further back is output
//! and can no longer be drawn over.
//!
//! What always holds: text without control characters stays as it is; the output is never longer than the input, and has no control
//! characters, so rendering it again changes nothing.
//!
//! Not followed, because the size of the screen is unknown: positions on the whole screen (`ESC[H`) and clearing all of it (`ESC[2J`).
//! They lose nothing: what was there stays, and what follows begins a line.

use std::{borrow::Cow, collections::VecDeque};

/// Lines that can be drawn over.
const ROWS: usize = 48;
/// Bytes of these lines together.
const WINDOW_BYTES: usize = 64 * 1024;
/// Bytes of one line that can be drawn over; the beginning of a longer one is output.
const LINE_BYTES: usize = 4 * 1024;
/// Columns that can be moved to beyond the end of a line.
const COLUMNS: usize = 200;

/// Whether a character does anything but show itself or end a line.
fn is_control(c: char) -> bool {
    // Backspace, carriage return and escape; the bell and the two shifts, which show nothing.
    matches!(c, '\x08' | '\r' | '\x1b' | '\x07' | '\x0e' | '\x0f')
}

/// This text as a terminal shows it.
#[must_use]
pub fn render(text: &str) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let (mut screen, mut out) = (Screen::default(), String::new());
    screen.feed(text, &mut out);
    screen.finish(&mut out);
    Cow::Owned(out)
}

/// Renders text, as it comes, as a terminal shows it.
#[derive(Debug, Clone)]
pub struct Screen {
    /// Lines that can still be drawn over: one at least.
    rows: VecDeque<Row>,
    /// Bytes of all of them.
    bytes: usize,
    /// The line that is written to.
    row: usize,
    /// The byte in it that is written next.
    offset: usize,
    /// Columns between the end of the line and the column that is written next.
    beyond: usize,
    state: State,
}

#[derive(Debug, Clone, Default)]
struct Row {
    text: String,
    /// Something of it was replaced or removed: then blanks at its end are not shown.
    is_drawn_over: bool,
}

/// What the next character is part of.
#[derive(Debug, Clone, Copy, Default)]
enum State {
    #[default]
    Text,
    /// A sequence of which the first character has come.
    Escape,
    /// One that chooses characters, and ends with the next one that is no punctuation.
    Charset,
    /// One with parameters.
    Control(Parameters),
    /// Text that is not shown, such as a title or the target of a link; `is_escape` if the escape that may end it has come.
    HiddenText { is_escape: bool },
}

/// What a sequence has before its last character.
#[derive(Debug, Clone, Copy, Default)]
struct Parameters {
    number: Option<usize>,
    /// There is more than one number.
    are_many: bool,
    /// It is of a kind that moves and erases nothing.
    is_private: bool,
}

impl Default for Screen {
    fn default() -> Self {
        Self { rows: VecDeque::from([Row::default()]), bytes: 0, row: 0, offset: 0, beyond: 0, state: State::Text }
    }
}

impl Row {
    fn visible_text(&self) -> &str {
        if self.is_drawn_over { self.text.trim_end_matches(' ') } else { &self.text }
    }

    /// The byte where a column is, or the end of the line.
    fn byte(&self, column: usize) -> usize {
        self.text.char_indices().nth(column).map_or(self.text.len(), |(at, _)| at)
    }
}

impl Screen {
    /// An empty screen for what follows this text. Nothing of the text is on it, but a sequence that it begins is known.
    #[must_use]
    pub fn after(text: &str) -> Self {
        let (mut before, mut unseen) = (Self::default(), String::new());
        before.feed(text, &mut unseen);
        Self { state: before.state, ..Self::default() }
    }

    /// More text. What can no longer be drawn over is added to `out`.
    pub fn feed(&mut self, text: &str, out: &mut String) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let plain = if self.is_at_end() { rest.find(is_control).unwrap_or(rest.len()) } else { 0 };
            let taken = if plain > 0 {
                self.append(&rest[..plain], out);
                plain
            } else {
                self.put(c, out);
                c.len_utf8()
            };
            rest = &rest[taken..];
        }
    }

    /// Ends the text: adds what is left to `out`, and begins anew.
    pub fn finish(&mut self, out: &mut String) {
        while self.rows.len() > 1 {
            self.give_top(out);
        }
        out.push_str(self.rows[0].visible_text());
        *self = Self::default();
    }

    /// How many bytes it holds that can still be drawn over.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.bytes + self.rows.len() - 1
    }

    /// Whether text is written behind all that is there.
    fn is_at_end(&self) -> bool {
        matches!(self.state, State::Text)
            && self.beyond == 0
            && self.row + 1 == self.rows.len()
            && self.offset == self.rows[self.row].text.len()
    }

    /// Text without control characters, behind all that is there.
    fn append(&mut self, text: &str, out: &mut String) {
        let mut rest = text;
        // Of many lines all but the last few are output as they are, once the first has been joined with what is there.
        if let (Some(first), Some((end, _))) = (text.find('\n'), text.rmatch_indices('\n').nth(ROWS - 1))
            && first < end
        {
            self.append_part(&text[..first], out);
            self.next_row(out);
            self.finish(out);
            out.push_str(&text[first + 1..=end]);
            rest = &text[end + 1..];
        }
        for (nth, part) in rest.split('\n').enumerate() {
            if nth > 0 {
                self.next_row(out);
            }
            self.append_part(part, out);
        }
    }

    /// A part of the last line.
    fn append_part(&mut self, part: &str, out: &mut String) {
        self.rows[self.row].text.push_str(part);
        self.bytes += part.len();
        self.offset += part.len();
        self.keep_bounds(out);
    }

    fn put(&mut self, c: char, out: &mut String) {
        match std::mem::take(&mut self.state) {
            State::Text => self.text(c, out),
            State::Escape => self.escape(c, out),
            State::Charset => match c {
                ' '..='/' => self.state = State::Charset,
                '0'..='~' => {}
                other => self.text(other, out),
            },
            State::Control(parameters) => self.control(parameters, c, out),
            State::HiddenText { is_escape: true } if c == '\\' => {}
            State::HiddenText { is_escape: true } => self.escape(c, out),
            State::HiddenText { is_escape: false } => match c {
                '\x07' | '\x18' | '\x1a' | '\u{9c}' => {}
                // Hidden text that was not ended ends here: else all that follows would be lost.
                '\n' => self.text(c, out),
                other => self.state = State::HiddenText { is_escape: other == '\x1b' },
            },
        }
    }

    fn text(&mut self, c: char, out: &mut String) {
        match c {
            '\n' => self.next_row(out),
            '\r' => self.go_to(0),
            '\x08' => self.left(1),
            '\x1b' => self.state = State::Escape,
            c if is_control(c) => {}
            c => self.write(c, out),
        }
    }

    fn escape(&mut self, c: char, out: &mut String) {
        match c {
            '[' => self.state = State::Control(Parameters::default()),
            ']' | 'P' | 'X' | '^' | '_' => self.state = State::HiddenText { is_escape: false },
            ' '..='/' => self.state = State::Charset,
            '0'..='~' => {}
            other => self.text(other, out),
        }
    }

    fn control(&mut self, mut parameters: Parameters, c: char, out: &mut String) {
        match c {
            '0'..='9' if !parameters.are_many => {
                let digit = usize::from(c as u8 - b'0');
                parameters.number = Some(parameters.number.unwrap_or(0).saturating_mul(10).saturating_add(digit));
            }
            '0'..=';' => parameters.are_many = true,
            ' '..='?' => parameters.is_private = true,
            '@'..='~' => {
                if !parameters.is_private {
                    self.act(c, parameters.number.unwrap_or(0), out);
                }
                return;
            }
            other => return self.text(other, out),
        }
        self.state = State::Control(parameters);
    }

    /// Carries out a sequence that ends with this character.
    fn act(&mut self, last: char, number: usize, out: &mut String) {
        let count = number.max(1);
        match last {
            'A' => self.move_to_row(self.row.saturating_sub(count)),
            'B' => self.move_to_row(self.row.saturating_add(count)),
            'C' => self.go_to(self.column().saturating_add(count)),
            'D' => self.left(count),
            'E' | 'F' => {
                let to = if last == 'E' { self.row.saturating_add(count) } else { self.row.saturating_sub(count) };
                self.move_to_row(to);
                self.go_to(0);
            }
            'G' | '`' => self.go_to(count - 1),
            'H' | 'f' => self.begin_line(out),
            'J' if number == 0 => {
                self.erase(0);
                for gone in self.rows.drain(self.row + 1..) {
                    self.bytes -= gone.text.len();
                }
            }
            'J' if number > 1 => self.begin_line(out),
            'K' => self.erase(number),
            _ => {}
        }
    }

    /// The column that is written next.
    fn column(&self) -> usize {
        self.rows[self.row].text[..self.offset].chars().count() + self.beyond
    }

    fn go_to(&mut self, column: usize) {
        let row = &self.rows[self.row];
        self.offset = row.byte(column);
        let end = if self.offset == row.text.len() { row.text.chars().count() } else { column };
        self.beyond = column.min(COLUMNS - 1).saturating_sub(end);
    }

    fn left(&mut self, count: usize) {
        let over = count.min(self.beyond);
        self.beyond -= over;
        let (count, before) = (count - over, &self.rows[self.row].text[..self.offset]);
        // A character has one byte at least.
        self.offset = match before.len() > count {
            true => before.char_indices().rev().take(count).last().map_or(self.offset, |(at, _)| at),
            false => 0,
        };
    }

    /// Goes to the same column of another line, as far as there is one.
    fn move_to_row(&mut self, row: usize) {
        let column = self.column();
        self.row = row.min(self.rows.len() - 1);
        self.offset = self.rows[self.row].byte(column);
        self.beyond = 0;
    }

    fn write(&mut self, c: char, out: &mut String) {
        let row = &mut self.rows[self.row];
        let before = row.text.len();
        if std::mem::take(&mut self.beyond) > 0 {
            // One blank stands for all of them, so that the output is not longer than the input.
            row.text.push(' ');
            self.offset = row.text.len();
        }
        match row.text[self.offset..].chars().next() {
            None => row.text.push(c),
            Some(old) => {
                row.is_drawn_over = true;
                row.text.replace_range(self.offset..self.offset + old.len_utf8(), c.encode_utf8(&mut [0; 4]));
            }
        }
        self.offset += c.len_utf8();
        self.bytes = self.bytes + row.text.len() - before;
        self.keep_bounds(out);
    }

    /// Erases a line: from here on (0), up to here (1), or all of it.
    fn erase(&mut self, part: usize) {
        let row = &mut self.rows[self.row];
        let before = row.text.len();
        if part == 0 {
            row.is_drawn_over |= self.offset < before;
            row.text.truncate(self.offset);
        } else {
            let here = row.text[self.offset..].chars().next().map_or(0, char::len_utf8);
            let blank = row.text[..self.offset].chars().count();
            let kept = if part == 1 { row.text.split_off(self.offset + here) } else { String::new() };
            row.text = " ".repeat(blank + usize::from(part == 1 && here > 0)) + &kept;
            row.is_drawn_over = true;
            self.offset = blank;
        }
        self.bytes = self.bytes + row.text.len() - before;
    }

    fn next_row(&mut self, out: &mut String) {
        (self.offset, self.beyond) = (0, 0);
        self.row += 1;
        if self.row == self.rows.len() {
            self.rows.push_back(Row::default());
            if self.rows.len() > ROWS {
                self.give_top(out);
            }
        }
    }

    /// Leaves all that is there as it is, and goes on in a line of its own.
    fn begin_line(&mut self, out: &mut String) {
        let is_empty = self.rows[self.rows.len() - 1].visible_text().is_empty();
        self.finish(out);
        if !is_empty {
            out.push('\n');
        }
    }

    /// Outputs what is too much to be kept.
    fn keep_bounds(&mut self, out: &mut String) {
        while self.rows[self.row].text.len() > LINE_BYTES {
            // What is above it comes before it.
            while self.row > 0 {
                self.give_top(out);
            }
            let text = &mut self.rows[0].text;
            let cut = text.floor_char_boundary(LINE_BYTES / 2);
            out.push_str(&text[..cut]);
            text.drain(..cut);
            self.bytes -= cut;
            self.offset = self.offset.saturating_sub(cut);
        }
        while self.bytes > WINDOW_BYTES && self.row > 0 {
            self.give_top(out);
        }
    }

    /// Outputs the first line.
    fn give_top(&mut self, out: &mut String) {
        if let Some(top) = self.rows.pop_front() {
            self.bytes -= top.text.len();
            out.push_str(top.visible_text());
            out.push('\n');
            self.row = self.row.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests;
