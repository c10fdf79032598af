//! `taskwire emit`: a command adds content, a structured result or an error to its output.

use std::{
    fs::File,
    io::{self, ErrorKind, Read},
    path::Path,
    process::ExitCode,
};

use clap::Args;
use serde_json::{Value, json};
use taskwire::{
    command::{CurrentTask, Note},
    tool::Content,
};
use taskwire_core::Payload;

use super::in_task;
use crate::client::exit::Problem;

/// Bytes of text that are sent at once: few enough to be seen as they come.
const TEXT_BYTES_MAX: usize = 32 * 1024;
/// The largest file: encoded, it must fit into one message. The server's own limit is usually lower; it says so itself.
const FILE_BYTES_MAX: usize = 750 * 1024;

/// MIME types by file extension.
const IMAGE_TYPES: [(&str, &str); 10] = [
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("svg", "image/svg+xml"),
    ("avif", "image/avif"),
    ("bmp", "image/bmp"),
    ("tif", "image/tiff"),
    ("tiff", "image/tiff"),
];
const AUDIO_TYPES: [(&str, &str); 9] = [
    ("wav", "audio/wav"),
    ("mp3", "audio/mpeg"),
    ("ogg", "audio/ogg"),
    ("oga", "audio/ogg"),
    ("opus", "audio/ogg"),
    ("flac", "audio/flac"),
    ("m4a", "audio/mp4"),
    ("aac", "audio/aac"),
    ("weba", "audio/webm"),
];
/// The kinds of content blocks, and the members that each needs.
const BLOCK_KINDS: [(&str, &[&str]); 5] = [
    ("text", &["text"]),
    ("image", &["data", "mimeType"]),
    ("audio", &["data", "mimeType"]),
    ("resource", &[]),
    ("resource_link", &["uri", "name"]),
];

const EXAMPLES: &str = "Examples:
  taskwire emit 'half of it is done'
  df -h | taskwire emit -
  taskwire emit 'The map:' --image map.png
  taskwire emit --link https://example.com/report.pdf --name report
  taskwire emit --result '{\"rows\": 17}'     the structured result of the call
  taskwire emit 'no such table' --error     the call failed, whatever the
                                            command's exit code
  taskwire emit --json '{\"type\": \"text\", \"text\": \"done\"}'

For commands that `taskwire serve` runs as tools, and the programs that they
run: what is emitted comes into the task's output right here, between what the
command prints. Several things in one call are emitted in this order: text,
--json, --image, --audio, --link, --result. The last result counts.
Elsewhere nothing is done but to say so.

BLOCK and JSON can be in a file: @FILE, or @- for standard input. An image or a
sound may have 750 KiB, and as base64 at most `limits.block_bytes` of the
server. One larger than `limits.chunk_bytes` is kept as a resource, and the
output has a link to it. Text may have any length.

Exit codes:
  0  it is written down, or there is no task
  2  the command line is wrong, or a file cannot be used
  3  the task is over, or refuses";

/// Inside a task: add text, an image, a link or a result to the output.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Emit {
    /// A text, which becomes a line; - takes standard input as it comes
    #[arg(value_name = "TEXT", required_unless_present_any = ["json", "image", "audio", "link", "result", "error"])]
    words: Vec<String>,
    /// A content block of the protocol
    #[arg(long, value_name = "BLOCK")]
    json: Vec<String>,
    /// An image
    #[arg(long, value_name = "FILE")]
    image: Vec<String>,
    /// Sound
    #[arg(long, value_name = "FILE")]
    audio: Vec<String>,
    /// What the image or the sound is, where its name does not tell
    #[arg(long, value_name = "TYPE")]
    mime_type: Option<String>,
    /// A link to something that clients can read
    #[arg(long, value_name = "URI")]
    link: Option<String>,
    /// The link's name
    #[arg(long, requires = "link")]
    name: Option<String>,
    /// The structured result of the call
    #[arg(long, value_name = "JSON")]
    result: Option<String>,
    /// The call has failed
    #[arg(long)]
    error: bool,
}

impl Emit {
    pub(crate) fn run(self) -> ExitCode {
        in_task::exit_code(self.emit())
    }

    fn emit(&self) -> Result<(), Problem> {
        // Check everything first: a mistake must not be found when half of it is sent.
        let notes = self.notes()?;
        let text = (!self.words.is_empty()).then(|| self.words.join(" "));
        let Some(mut task) = in_task::current_task()? else {
            in_task::warn_outside_task("emit");
            if text.as_deref() == Some("-") {
                // Read standard input to its end: its writer should not be stopped by a broken pipe.
                io::copy(&mut io::stdin().lock(), &mut io::sink())?;
            }
            return Ok(());
        };
        match text.as_deref() {
            Some("-") => send_text(&mut task, &mut io::stdin().lock())?,
            Some(text) => {
                let end = if text.ends_with('\n') { "" } else { "\n" };
                send_text(&mut task, &mut format!("{text}{end}").as_bytes())?;
            }
            None => {}
        }
        notes.iter().try_for_each(|note| task.note(note).map_err(in_task::problem))
    }

    /// All notes but the text.
    fn notes(&self) -> Result<Vec<Note>, Problem> {
        if self.mime_type.is_some() && self.image.len() + self.audio.len() != 1 {
            return Err(Problem::usage("--mime-type: says what one --image or one --audio is"));
        }
        let mut blocks = Vec::new();
        for text in &self.json {
            let block = in_task::json_option("--json", text)?;
            check_block(&block).map_err(|why| Problem::usage(format!("--json: {why}")))?;
            blocks.push(block);
        }
        for file in &self.image {
            let kind = self.type_of("--image", file, &IMAGE_TYPES)?;
            blocks.push(Content::image(&load("--image", file)?, kind).into_payload());
        }
        for file in &self.audio {
            let kind = self.type_of("--audio", file, &AUDIO_TYPES)?;
            blocks.push(Content::audio(&load("--audio", file)?, kind).into_payload());
        }
        if let Some(uri) = &self.link {
            let name = self.name.as_deref().unwrap_or_else(|| name_in(uri));
            blocks.push(Content::link(uri, name).into_payload());
        }
        let structured = self.result.as_ref().map(|text| in_task::json_option("--result", text)).transpose()?;
        let mut notes: Vec<Note> = blocks.into_iter().map(|block| Note::Block { block }).collect();
        if structured.is_some() || self.error {
            notes.push(Note::Result { structured, is_error: self.error });
        }
        Ok(notes)
    }

    /// The MIME type of a file, by the option or by its name.
    fn type_of(&self, option: &str, file: &str, known: &[(&'static str, &'static str)]) -> Result<&str, Problem> {
        if let Some(kind) = &self.mime_type {
            return Ok(kind);
        }
        let ending = Path::new(file).extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
        known.iter().find(|(name, _)| *name == ending).map(|(_, kind)| *kind).ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            Problem::usage(format!(
                "{option}: the name `{file}` does not tell what is in it: say it with --mime-type, or let it end in one of {}",
                names.join(", ")
            ))
        })
    }
}

/// The bytes of a file; of standard input for `-`.
fn load(option: &str, file: &str) -> Result<Vec<u8>, Problem> {
    let read = |source: &mut dyn Read| {
        let mut bytes = Vec::new();
        source.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map(|_| bytes)
    };
    let (source, bytes) = match file {
        "-" => ("standard input", read(&mut io::stdin().lock())),
        file => (file, File::open(file).and_then(|mut file| read(&mut file))),
    };
    let bytes = bytes.map_err(|error| Problem::usage(format!("{option}: cannot read {source}: {error}")))?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(Problem::usage(format!(
            "{option}: {source} is too large: at most {} KiB can be emitted. Put it where the client can read it, and emit a --link",
            FILE_BYTES_MAX / 1024
        )));
    }
    Ok(bytes)
}

/// The last part of an address.
fn name_in(uri: &str) -> &str {
    let path = uri.split(['?', '#']).next().unwrap_or_default();
    path.trim_end_matches('/').rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(uri)
}

/// Whether clients can read this block.
fn check_block(block: &Payload) -> Result<(), String> {
    let block: Value = block.read().map_err(|error| error.to_string())?;
    let kind = block.get("type").and_then(Value::as_str).unwrap_or_default();
    let Some((_, members)) = BLOCK_KINDS.iter().find(|(name, _)| *name == kind) else {
        let names: Vec<&str> = BLOCK_KINDS.iter().map(|(name, _)| *name).collect();
        return Err(format!("a content block is an object whose `type` is one of {}", names.join(", ")));
    };
    if let Some(missing) = members.iter().find(|member| !block.get(**member).is_some_and(Value::is_string)) {
        return Err(format!("a block of type `{kind}` needs the text `{missing}`"));
    }
    let resource = &block["resource"];
    if kind == "resource" && !(resource["uri"].is_string() && (resource["text"].is_string() || resource["blob"].is_string())) {
        return Err("a block of type `resource` needs `resource` with the texts `uri` and `text`, or `uri` and `blob`".to_owned());
    }
    Ok(())
}

/// Sends a text as it comes, in pieces that end with whole characters.
fn send_text(task: &mut CurrentTask, source: &mut dyn Read) -> Result<(), Problem> {
    read_text(source, |text| {
        let block = Payload::from(json!({"type": "text", "text": text}));
        task.note(&Note::Block { block }).map_err(in_task::problem)
    })
}

/// Reads text. Bytes that are no text become replacement characters.
fn read_text(source: &mut dyn Read, mut send: impl FnMut(&str) -> Result<(), Problem>) -> Result<(), Problem> {
    let mut buffer = vec![0; TEXT_BYTES_MAX];
    let mut leftover = 0;
    loop {
        let len = match source.read(&mut buffer[leftover..]) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            result => result.map_err(|error| Problem::usage(format!("cannot read standard input: {error}")))?,
        };
        let end = leftover + len;
        let whole = if len == 0 { end } else { whole_chars(&buffer[..end]) };
        if whole > 0 {
            send(&String::from_utf8_lossy(&buffer[..whole]))?;
        }
        if len == 0 {
            return Ok(());
        }
        buffer.copy_within(whole..end, 0);
        leftover = end - whole;
    }
}

/// The number of bytes before a character that is incomplete.
fn whole_chars(bytes: &[u8]) -> usize {
    let is_inner = |byte: &&u8| (0x80..0xc0).contains(*byte);
    let inner = bytes.iter().rev().take(3).take_while(is_inner).count();
    let Some(first) = bytes.len().checked_sub(inner + 1) else { return bytes.len() };
    let needs = match bytes[first] {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    };
    if needs > inner + 1 { first } else { bytes.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives what it has in pieces of this many bytes.
    struct Drip<'a>(&'a [u8], usize);

    impl Read for Drip<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let len = self.1.min(buffer.len()).min(self.0.len());
            buffer[..len].copy_from_slice(&self.0[..len]);
            self.0 = &self.0[len..];
            Ok(len)
        }
    }

    fn split(bytes: &[u8], at_once: usize) -> Vec<String> {
        let mut texts = Vec::new();
        let result = read_text(&mut Drip(bytes, at_once), |text| {
            texts.push(text.to_owned());
            Ok(())
        });
        result.expect("all can be read");
        texts
    }

    #[test]
    fn text_that_comes_in_any_pieces_is_the_same_text() {
        let text = "aé€😀\u{10ffff}\0\n".repeat(3);
        for at_once in 1..=text.len() {
            let texts = split(text.as_bytes(), at_once);
            assert_eq!(texts.concat(), text, "{at_once} bytes at once");
            assert!(texts.iter().all(|text| !text.is_empty()));
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_marked_and_hold_nothing_up() {
        for bytes in [b"a\xffb".as_slice(), b"\x80\x80\x80\x80\x80", b"a\xe2\x82", b"\xf0\x9f", b"\xc0\xaf", b"\xf5\x80\x80\x80x"] {
            for at_once in 1..=bytes.len() {
                let text = split(bytes, at_once).concat();
                assert!(text.contains('\u{fffd}'), "{bytes:x?}: {text}");
                assert_eq!(text.chars().filter(char::is_ascii).count(), bytes.iter().filter(|byte| byte.is_ascii()).count());
            }
        }
    }

    #[test]
    fn a_long_text_is_sent_in_pieces_that_fit() {
        let text = "é".repeat(TEXT_BYTES_MAX);
        let texts = split(text.as_bytes(), usize::MAX);
        assert!(texts.len() > 1 && texts.iter().all(|text| text.len() <= TEXT_BYTES_MAX));
        assert_eq!(texts.concat(), text);
    }

    fn emit() -> Emit {
        Emit {
            words: Vec::new(),
            json: Vec::new(),
            image: Vec::new(),
            audio: Vec::new(),
            mime_type: None,
            link: None,
            name: None,
            result: None,
            error: false,
        }
    }

    #[test]
    fn a_name_tells_what_is_in_a_file() {
        let kind = |file: &str| emit().type_of("--image", file, &IMAGE_TYPES).map(ToOwned::to_owned).ok();
        assert_eq!(kind("a/b.PNG").as_deref(), Some("image/png"));
        assert_eq!(kind("b.tar.jpeg").as_deref(), Some("image/jpeg"));
        for file in ["png", ".png", "a.", "a.txt", "a.wav", "", "-", "a.png/b"] {
            assert_eq!(kind(file), None, "{file}");
        }
        let said = Emit { mime_type: Some("image/x-own".to_owned()), ..emit() };
        assert_eq!(said.type_of("--image", "-", &IMAGE_TYPES).ok(), Some("image/x-own"));
    }

    #[test]
    fn one_type_is_for_one_file() {
        let two = Emit { mime_type: Some("image/png".to_owned()), image: vec!["a".to_owned(), "b".to_owned()], ..emit() };
        assert!(two.notes().is_err());
        let none = Emit { mime_type: Some("image/png".to_owned()), error: true, ..emit() };
        assert!(none.notes().is_err());
    }

    #[test]
    fn a_link_without_a_name_has_the_last_part_of_its_address() {
        for (uri, name) in [
            ("https://example.com/a/report.pdf?x=/y#z", "report.pdf"),
            ("https://example.com/a/", "a"),
            ("https://example.com", "example.com"),
            ("urn:x", "urn:x"),
            ("/", "/"),
            ("?", "?"),
        ] {
            assert_eq!(name_in(uri), name);
        }
    }

    #[test]
    fn a_block_has_what_its_kind_needs() {
        for block in [
            json!({"type": "text", "text": ""}),
            json!({"type": "image", "data": "", "mimeType": "image/png", "annotations": {}}),
            json!({"type": "resource", "resource": {"uri": "x:y", "text": ""}}),
            json!({"type": "resource", "resource": {"uri": "x:y", "blob": ""}}),
            json!({"type": "resource_link", "uri": "x:y", "name": "n"}),
        ] {
            check_block(&block.clone().into()).unwrap_or_else(|why| panic!("{block}: {why}"));
        }
        for block in [
            json!(null),
            json!([]),
            json!("text"),
            json!({}),
            json!({"type": 1}),
            json!({"type": "txt", "text": ""}),
            json!({"type": "text"}),
            json!({"type": "text", "text": 1}),
            json!({"type": "audio", "data": ""}),
            json!({"type": "resource"}),
            json!({"type": "resource", "resource": {"uri": "x:y"}}),
            json!({"type": "resource_link", "uri": "x:y"}),
        ] {
            assert!(check_block(&block.clone().into()).is_err(), "{block}");
        }
    }

    #[test]
    fn a_failure_needs_no_result_and_a_result_no_failure() {
        let notes = |emit: Emit| emit.notes().expect("nothing is wrong");
        assert_eq!(notes(Emit { error: true, ..emit() }), [Note::Result { structured: None, is_error: true }]);
        let structured = Some(Payload::from(json!({"n": 1})));
        assert_eq!(notes(Emit { result: Some("{\"n\":1}".to_owned()), ..emit() }), [Note::Result { structured, is_error: false }]);
        assert!(notes(Emit { words: vec!["x".to_owned()], ..emit() }).is_empty());
    }
}
