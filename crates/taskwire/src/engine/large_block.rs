//! Blocks that are too large for a chunk: they are split into parts, each a block of its own, and a link to read the whole.
//!
//! The parts come before the link in the task's log, so a client that has the link can follow it, also after a crash. They are deleted
//! with the task. A block is named by the hash of its content: written again, it has the same name.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use taskwire_core::{
    Limits, TaskId,
    task::{ESCAPE_MAX, Reject, check_limit},
};

/// In the `_meta` of a part: the name of its block, its number from 0, and how many there are.
pub(crate) const PART: &str = "dev.taskwire/part";

/// How the URI of anything that belongs to a task begins.
const PREFIX: &str = "taskwire://task/";
/// Bytes of a part besides its content; its MIME type has at most the second.
const FRAME_BYTES: usize = 512;
const MIME_TYPE_BYTES_MAX: usize = 100;
/// With smaller parts than this, a block would have too many.
const PART_BYTES_MIN: usize = 256;
/// Bytes of a link's name, which is for people.
const NAME_BYTES: usize = 100;

/// The content of a block that its link leads to.
struct Content<'a> {
    /// The member that has it in a resource: `blob` or `text`.
    member: &'static str,
    data: &'a str,
    mime_type: &'a str,
    /// What people call it.
    noun: &'static str,
    name: &'a str,
}

impl<'a> Content<'a> {
    /// `None` for blocks that cannot be split.
    fn of(block: &'a Value) -> Option<Self> {
        let noun = match block["type"].as_str()? {
            "image" => "image",
            "audio" => "sound",
            "resource" => "resource",
            _ => return None,
        };
        let of = if noun == "resource" { &block["resource"] } else { block };
        let name = of["uri"].as_str().unwrap_or(noun);
        let (member, data) = match (of["data"].as_str().or(of["blob"].as_str()), of["text"].as_str()) {
            (Some(data), _) => ("blob", Some(data).filter(|data| data.bytes().all(is_base64))?),
            (None, text) => ("text", text?),
        };
        let usual = if member == "text" { "text/plain" } else { "application/octet-stream" };
        let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
        let kind = of["mimeType"].as_str().filter(|kind| kind.len() <= MIME_TYPE_BYTES_MAX && kind.bytes().all(is_plain)).unwrap_or(usual);
        Some(Self { member, data, mime_type: kind, noun, name })
    }

    /// Bytes of the decoded content.
    fn size(&self) -> usize {
        if self.member == "text" { self.data.len() } else { self.data.trim_end_matches('=').len() * 3 / 4 }
    }

    /// Parts that fit into chunks; `None` if chunks are too small for that.
    fn parts(&self, chunk_bytes: u64) -> Option<Vec<&'a str>> {
        let room = usize::try_from(chunk_bytes).unwrap_or(usize::MAX).checked_sub(FRAME_BYTES).filter(|room| *room >= PART_BYTES_MIN)?;
        // Each part of a blob has whole groups of base64.
        let most = if self.member == "text" { room / ESCAPE_MAX } else { room / 4 * 4 };
        let (mut parts, mut rest) = (Vec::new(), self.data);
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.floor_char_boundary(most));
            parts.push(part);
            rest = after;
        }
        Some(parts)
    }
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/=-_".contains(&byte)
}

/// Splits a block that is too large for a chunk: its parts, and last the link.
///
/// # Errors
/// When it is larger than a block may be, or cannot be split.
pub(crate) fn split(id: TaskId, block: &Value, limits: &Limits) -> Result<Vec<Value>, Reject> {
    let whole = block.to_string();
    check_limit("the block is too large", whole.len() as u64, limits.block_bytes, "block_bytes")?;
    let found = Content::of(block).and_then(|content| Some((content.parts(limits.chunk_bytes)?, content)));
    let Some((parts, content)) = found else {
        return Err(Reject::Limit { what: "the chunk is too large", max: limits.chunk_bytes, key: "chunk_bytes" });
    };
    let hash = Sha256::digest(whole.as_bytes());
    let name: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let uri = format!("{PREFIX}{id}/block/{name}");
    let mut blocks: Vec<Value> = parts
        .iter()
        .enumerate()
        .map(|(nth, part)| {
            json!({
                "type": "resource",
                "resource": {"uri": format!("{uri}?part={nth}"), "mimeType": content.mime_type, (content.member): part},
                "_meta": {PART: {"of": name, "part": nth, "parts": parts.len()}},
            })
        })
        .collect();
    let (noun, size) = (content.noun, content.size());
    let link_name =
        content.name[..content.name.floor_char_boundary(NAME_BYTES)].replace(|c: char| c.is_control() || c == '"' || c == '\\', " ");
    blocks.push(json!({
        "type": "resource_link",
        "uri": uri,
        "name": link_name,
        "mimeType": content.mime_type,
        "size": size,
        "description": format!("This {noun} has {size} bytes, too many for the output itself: read this resource to get it."),
    }));
    Ok(blocks)
}

/// Whether a block is only a part of another.
pub(crate) fn is_part(block: &Value) -> bool {
    block["_meta"][PART].is_object()
}

/// Whether a block is a link to one that was written in parts.
pub(crate) fn is_link(block: &Value) -> bool {
    block["type"] == "resource_link" && block["uri"].as_str().and_then(parse_block_uri).is_some()
}

/// The task and the name of the block that a URI leads to.
pub(crate) fn parse_block_uri(uri: &str) -> Option<(TaskId, &str)> {
    let (id, name) = uri.strip_prefix(PREFIX)?.split_once("/block/")?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some((id.parse::<TaskId>().ok().filter(|_| is_name)?, name))
}

/// Puts the parts of a block together again.
#[derive(Debug, Default)]
pub(crate) struct BlockAssembler {
    data: String,
    next: u64,
}

impl BlockAssembler {
    /// Takes a block, which may be a part of the block `name`. Returns the whole, as the contents of a resource, with the last part.
    pub(crate) fn take(&mut self, block: &Value, name: &str, uri: &str) -> Option<Value> {
        let part = &block["_meta"][PART];
        let nth = part["part"].as_u64().filter(|_| part["of"] == name)?;
        if nth == 0 {
            *self = Self::default();
        }
        let of = &block["resource"];
        let (member, data) = match (of["blob"].as_str(), of["text"].as_str()) {
            (Some(blob), _) => ("blob", blob),
            (None, text) => ("text", text?),
        };
        if nth != self.next {
            return None;
        }
        self.data.push_str(data);
        self.next += 1;
        (part["parts"] == self.next).then(|| json!({"uri": uri, "mimeType": of["mimeType"], (member): std::mem::take(&mut self.data)}))
    }
}

#[cfg(test)]
mod tests {
    use taskwire_core::{Timestamp, id::ID_RANDOM_BYTES};

    use super::*;

    fn id() -> TaskId {
        TaskId::new(Timestamp::from_millis(5_000), [7; ID_RANDOM_BYTES])
    }

    fn limits() -> Limits {
        Limits { chunk_bytes: 1024, block_bytes: 20_000, ..Limits::DEFAULT }
    }

    /// The link of a block that is split, and the contents that it leads to.
    fn read(block: &Value) -> (Value, Value) {
        let mut blocks = split(id(), block, &limits()).expect("it can be cut");
        assert!(blocks.iter().all(|block| block.to_string().len() + 2 <= 1024), "each fits into a chunk");
        let link = blocks.pop().expect("a link");
        assert!(is_link(&link) && !is_part(&link) && blocks.iter().all(is_part), "{link}");
        let uri = link["uri"].as_str().expect("an address").to_owned();
        let (task, name) = parse_block_uri(&uri).expect("a block");
        assert_eq!(task, id());
        let mut parts = BlockAssembler::default();
        // A first part that comes twice, or a part of another block, does no harm.
        assert!(parts.take(&blocks[0], name, &uri).is_none() && parts.take(&blocks[0], "00", &uri).is_none());
        let found: Vec<Value> = blocks.iter().filter_map(|block| parts.take(block, name, &uri)).collect();
        assert_eq!(found.len(), 1);
        (link, found[0].clone())
    }

    #[test]
    fn a_block_is_the_same_when_its_parts_are_put_together() {
        let data = "QUJDRA".repeat(2000) + "QQ==";
        let (link, whole) = read(&json!({"type": "image", "data": data, "mimeType": "image/png"}));
        assert_eq!(whole, json!({"uri": link["uri"], "mimeType": "image/png", "blob": data}));
        assert_eq!((&link["mimeType"], &link["size"]), (&json!("image/png"), &json!((data.len() - 2) * 3 / 4)));
        let text = "é\u{0}\"€".repeat(1500);
        let (link, whole) = read(&json!({"type": "resource", "resource": {"uri": "file:///a", "text": text}}));
        assert_eq!(whole, json!({"uri": link["uri"], "mimeType": "text/plain", "text": text}));
        assert_eq!((&link["name"], &link["size"]), (&json!("file:///a"), &json!(text.len())));
    }

    #[test]
    fn what_cannot_be_cut_is_refused_with_the_limit() {
        let refused = |block: Value, limits: Limits| match split(id(), &block, &limits) {
            Err(Reject::Limit { key, .. }) => key,
            other => panic!("{other:?}"),
        };
        let image = |bytes: usize| json!({"type": "image", "data": "A".repeat(bytes), "mimeType": "image/png"});
        assert_eq!(refused(image(20_000), limits()), "block_bytes");
        assert_eq!(refused(image(5_000), Limits { chunk_bytes: 500, ..limits() }), "chunk_bytes");
        assert_eq!(refused(json!({"type": "resource_link", "uri": "x".repeat(2000), "name": "x"}), limits()), "chunk_bytes");
        assert_eq!(refused(json!({"type": "image", "data": "é".repeat(2000), "mimeType": "image/png"}), limits()), "chunk_bytes");
    }

    #[test]
    fn an_address_names_a_block_or_nothing() {
        let named = |uri: &str| parse_block_uri(uri).map(|(_, name)| name.to_owned());
        assert_eq!(named(&format!("taskwire://task/{}/block/0a1f", id())), Some("0a1f".to_owned()));
        for other in
            [format!("taskwire://task/{}/block/", id()), format!("taskwire://task/{}/block/x", id()), "taskwire://task/x/block/0a".into()]
        {
            assert_eq!(named(&other), None, "{other}");
        }
    }
}
