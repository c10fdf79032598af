//! The reader that is measured: some runs of one client, each read to its end.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use taskwire::client::{Client, Event, Link, Options, Outcome, Run, Target};
use tokio::task::JoinSet;

use super::{Read, Span, say_ready};

/// Calls the tool that pours, and reads what comes of all calls.
pub(super) async fn read(read: &Read) -> Result<Span> {
    let options = Options { name: "taskwire-bench".to_owned(), ..Options::default() };
    let client = Client::connect(Target::Url(format!("http://{}/mcp", read.addr)), options).await?;
    ensure!(client.peer().partials, "the server does not push output");
    let arguments = serde_json::to_value(&read.pour)?;
    let mut lanes = JoinSet::new();
    for _ in 0..read.runs {
        let run = client.start("pour", arguments.clone()).await?;
        lanes.spawn(drain(run, read.pour.texts as u64, read.pour.size));
    }
    say_ready();
    let mut whole: Option<Span> = None;
    while let Some(lane) = lanes.join_next().await {
        let span = lane??;
        whole = Some(whole.map_or(span, |whole| Span { first: whole.first.min(span.first), last: whole.last.max(span.last) }));
    }
    match whole {
        Some(span) => Ok(span),
        None => bail!("nothing was called"),
    }
}

/// Reads a run to its end, and takes the text out of each piece, as whoever uses a client does.
async fn drain(mut run: Run, texts: u64, size: usize) -> Result<Span> {
    let mut span: Option<Span> = None;
    let mut next = 0;
    while let Some(event) = run.next().await {
        match event? {
            Event::Partial(partial) => {
                ensure!(partial.seq == next, "partial result {} comes where {next} should", partial.seq);
                let text = partial.text();
                ensure!(text.len() == size, "{} bytes of text came instead of {size}", text.len());
                next += 1;
                if next == 1 || next == texts {
                    let now = Instant::now();
                    span = Some(Span { last: now, ..span.unwrap_or(Span { first: now, last: now }) });
                }
            }
            Event::Done(Outcome::Result(result)) => {
                ensure!(!result.is_error && next == texts, "{next} of {texts} partial results came before the end: {}", result.text());
                return match span {
                    Some(span) => Ok(span),
                    None => bail!("nothing came"),
                };
            }
            Event::Done(outcome) => bail!("it did not end well: {outcome:?}"),
            Event::Gap { from, until } => bail!("the partial results {from} to {until} are lost"),
            Event::Link(Link::Lost { reason, .. }) => bail!("the connection was lost: {reason}"),
            _ => {}
        }
    }
    bail!("the run has no end")
}
