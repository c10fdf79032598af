//! The reader that is measured: some calls of one client, each read to its end.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use taskwire::client::{Call, Client, ConnectionState, Event, Options, Outcome, Target};
use tokio::task::JoinSet;

use super::{ReadArgs, Span, say_ready};

/// Calls the tool that pours, and reads what comes of all calls.
pub(super) async fn read(read: &ReadArgs) -> Result<Span> {
    let options = Options { name: "taskwire-bench".to_owned(), ..Options::default() };
    let client = Client::connect(Target::Url(format!("http://{}/mcp", read.addr)), options).await?;
    ensure!(client.server_info().pushes_output, "the server does not push output");
    let arguments = serde_json::to_value(&read.pour)?;
    let mut readers = JoinSet::new();
    for _ in 0..read.runs {
        let call = client.start("pour", arguments.clone()).await?;
        readers.spawn(drain(call, read.pour.texts as u64, read.pour.size));
    }
    say_ready();
    let mut whole: Option<Span> = None;
    while let Some(reader) = readers.join_next().await {
        let span = reader??;
        whole = Some(whole.map_or(span, |whole| Span { first: whole.first.min(span.first), last: whole.last.max(span.last) }));
    }
    match whole {
        Some(span) => Ok(span),
        None => bail!("nothing was called"),
    }
}

/// Reads a call to its end, and takes the text out of each piece, as whoever uses a client does.
async fn drain(mut call: Call, texts: u64, size: usize) -> Result<Span> {
    let mut span: Option<Span> = None;
    let mut next = 0;
    while let Some(event) = call.next().await {
        match event? {
            Event::Chunk(chunk) => {
                ensure!(chunk.seq == next, "chunk {} comes where {next} should", chunk.seq);
                let text = chunk.text();
                ensure!(text.len() == size, "{} bytes of text came instead of {size}", text.len());
                next += 1;
                if next == 1 || next == texts {
                    let now = Instant::now();
                    span = Some(Span { last: now, ..span.unwrap_or(Span { first: now, last: now }) });
                }
            }
            Event::Done(Outcome::Result(result)) => {
                ensure!(!result.is_error && next == texts, "{next} of {texts} chunks came before the end: {}", result.text());
                return match span {
                    Some(span) => Ok(span),
                    None => bail!("nothing came"),
                };
            }
            Event::Done(outcome) => bail!("it did not end well: {outcome:?}"),
            Event::Gap { from, until } => bail!("the chunks {from} to {until} are lost"),
            Event::Connection(ConnectionState::Lost { reason, .. }) => bail!("the connection was lost: {reason}"),
            _ => {}
        }
    }
    bail!("the call has no end")
}
