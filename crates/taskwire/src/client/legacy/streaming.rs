//! A result that comes in segments on the stream of the call itself (SEP-1905).

use std::sync::Arc;

use serde_json::{Value, json};
use taskwire_core::{Payload, wire::code};

use super::{
    LegacyClient,
    resumable_stream::ResumableStream,
    router::Registration,
    segments::{SegmentLimits, Segments},
    watch::{self, Watch},
};
use crate::client::{
    Error, Outcome, Status,
    call::Driver,
    event::ToolResult,
    inbox::Notice,
    link::{self, RequestError},
};

/// Follows a call whose first response is `first`.
pub(super) async fn follow(
    legacy: Arc<LegacyClient>,
    mut driver: Driver,
    registration: Registration,
    stream: ResumableStream,
    first: Value,
) -> Result<Outcome, Error> {
    let limits = legacy.link.options.limits;
    let mut segments = Segments::with_limits(SegmentLimits { bytes: limits.message_bytes, ..SegmentLimits::DEFAULT });
    let fresh = take(&legacy, &mut segments, &first)?;
    let task = segments
        .task_id()
        .ok_or_else(|| legacy.link.error(RequestError::Protocol("a streamed result that names no task".to_owned())))?
        .to_owned();
    registration.set_task(&task);
    legacy.task_started(&task);
    driver.became_task(&task, stream.session.id.clone()).await?;
    let mut watch = Watch::new(legacy, driver, registration, task);
    if let Ok(snapshot) = super::read_snapshot(&Payload::from(first["task"].clone())) {
        watch.pace(&snapshot);
    }
    let mut streamed = StreamedResult { watch, segments, stream: Some(stream), asked_from: None };
    streamed.keep(fresh);
    streamed.run().await
}

/// Goes on with a call that an earlier process began: asks for the segments after those that it emitted.
pub(super) async fn resume(legacy: Arc<LegacyClient>, driver: Driver, registration: Registration, task: String) -> Result<Outcome, Error> {
    let mut watch = Watch::new(legacy, driver, registration, task);
    loop {
        let (page, complete) = page(&watch).await?;
        for (seq_nr, block) in page {
            watch.order.take(seq_nr - 1, Payload::from(json!([block])));
        }
        watch.hand_out().await;
        watch.give_up_gap().await;
        watch.hand_out().await;
        if complete {
            let answer = watch::wait_for_result(watch.legacy.clone(), watch.task.clone(), watch.registration.inbox.clone()).await;
            let Some((status, outcome)) = watch.read_result(answer).await? else {
                wait(&mut watch).await?;
                continue;
            };
            return watch.finish(status, outcome).await;
        }
        wait(&mut watch).await?;
    }
}

/// Waits before the next request, and takes notices meanwhile.
async fn wait(watch: &mut Watch) -> Result<(), Error> {
    let clock = watch.legacy.link.options.clock.clone();
    let until = clock.now().after(watch.poll());
    loop {
        tokio::select! {
            () = clock.sleep_until(until) => return Ok(()),
            () = watch.registration.inbox.ready() => {
                watch.registration.inbox.take_dropped();
                while let Some(notice) = watch.registration.inbox.try_next() {
                    // Pushed chunks have other numbers than segments.
                    if !matches!(notice, Notice::Chunk { .. }) {
                        watch.take(notice).await?;
                    }
                }
            }
        }
    }
}

/// The segments after those that were emitted, and whether they are the last.
async fn page(watch: &Watch) -> Result<(Vec<(u64, Value)>, bool), Error> {
    let legacy = watch.legacy.clone();
    let params = json!({"taskId": watch.task, "lastSeqNr": watch.order.next()});
    let result = legacy.request("tasks/result", params).await.map_err(|failed| legacy.link.task_error(&watch.task, failed))?;
    let result: Value = result.read().map_err(|error| legacy.link.error(RequestError::Protocol(error.to_string())))?;
    let mut blocks = Vec::new();
    for segment in result["partial-content"].as_array().into_iter().flatten() {
        let mut block = segment.clone();
        let number = block.as_object_mut().and_then(|block| block.remove("seqNr")).and_then(|number| number.as_u64());
        blocks.extend(number.filter(|number| *number > 0).map(|number| (number, block)));
    }
    Ok((blocks, result["isComplete"] == true || result.get("content").is_some()))
}

fn take(legacy: &LegacyClient, segments: &mut Segments, result: &Value) -> Result<Vec<(u64, Payload)>, Error> {
    let fresh = segments.take(result).map_err(|error| legacy.link.error(RequestError::Protocol(error.to_string())))?;
    Ok(fresh.into_iter().map(|segment| (segment.seq_nr - 1, Payload::from(json!([segment.block])))).collect())
}

struct StreamedResult {
    watch: Watch,
    segments: Segments,
    /// The stream of the call, as long as it lasts.
    stream: Option<ResumableStream>,
    /// Where the last request for missing segments began.
    asked_from: Option<u64>,
}

impl StreamedResult {
    fn keep(&mut self, fresh: Vec<(u64, Payload)>) {
        for (seq, content) in fresh {
            self.watch.order.take(seq, content);
        }
    }

    async fn run(mut self) -> Result<Outcome, Error> {
        loop {
            self.watch.hand_out().await;
            if let Some(content) = self.segments.merged() {
                return self.end(content).await;
            }
            if self.segments.is_complete() || (self.stream.is_none() && self.segments.resume_from().is_none() && !self.segments.is_empty())
            {
                if let Some((status, outcome)) = self.fetch().await? {
                    return self.watch.finish(status, outcome).await;
                }
                continue;
            }
            // Missing segments are asked for once; they may also be late.
            if !self.segments.gaps().is_empty() && self.segments.resume_from().is_some() && self.asked_from < self.segments.resume_from() {
                self.asked_from = self.segments.resume_from();
                self.pull().await?;
                continue;
            }
            let Some(stream) = &mut self.stream else {
                if self.segments.resume_from().is_none() {
                    // There is no segment to resume from: follow it as a plain task, which asks for the whole result.
                    return self.watch.run(None).await;
                }
                if !self.pull().await? {
                    if let Some((status, outcome)) = self.fetch_whole().await? {
                        return self.watch.finish(status, outcome).await;
                    }
                    wait(&mut self.watch).await?;
                } else if !self.segments.is_complete() {
                    wait(&mut self.watch).await?;
                }
                continue;
            };
            let inbox = self.watch.registration.inbox.clone();
            let id = stream.id;
            let message = tokio::select! {
                biased;
                () = inbox.ready() => {
                    inbox.take_dropped();
                    while let Some(notice) = inbox.try_next() {
                        match notice {
                            Notice::Response(Ok(result)) => self.segment(&result)?,
                            // The segments are the output; a pushed chunk would repeat it.
                            Notice::Chunk { .. } => {}
                            notice => drop(self.watch.take(notice).await?),
                        }
                    }
                    continue;
                }
                message = stream.next(Some(&inbox)) => message,
            };
            match message {
                Err(failed) if failed.is_transient() => self.stream = None,
                Err(failed) => return Err(self.watch.legacy.link.error(failed)),
                Ok(message) => match link::match_response(id, message) {
                    Ok(Ok(result)) => self.segment(&result)?,
                    Ok(Err(error)) => {
                        match self.watch.read_result(Ok(Err(error))).await? {
                            Some((status, outcome)) => return self.watch.finish(status, outcome).await,
                            // The task is still working.
                            None => self.stream = None,
                        }
                    }
                    Err(message) => self.watch.legacy.clone().dispatch(message, Some(&inbox)),
                },
            }
        }
    }

    fn segment(&mut self, result: &Payload) -> Result<(), Error> {
        let value: Value = result.read().map_err(|error| self.watch.legacy.link.error(RequestError::Protocol(error.to_string())))?;
        let fresh = take(&self.watch.legacy, &mut self.segments, &value)?;
        self.keep(fresh);
        Ok(())
    }

    /// The stream is complete except for gaps: asks for the missing segments, then for the whole result.
    async fn fetch(&mut self) -> Result<Option<(Status, Outcome)>, Error> {
        let before = self.segments.len();
        if self.segments.resume_from().is_some() {
            self.pull().await?;
        }
        if self.segments.merged().is_none() && self.segments.len() == before { self.fetch_whole().await } else { Ok(None) }
    }

    /// Asks for the segments after those that have come. False if the server does not support that.
    async fn pull(&mut self) -> Result<bool, Error> {
        let (legacy, Some(last)) = (self.watch.legacy.clone(), self.segments.resume_from()) else { return Ok(false) };
        match legacy.request("tasks/result", json!({"taskId": self.watch.task, "lastSeqNr": last})).await {
            Ok(result) => self.segment(&result).map(|()| true),
            Err(RequestError::Rpc(error)) if error.code != code::INVALID_PARAMS => {
                tracing::debug!(error.message, "segments cannot be asked for");
                Ok(false)
            }
            Err(failed) => Err(legacy.link.task_error(&self.watch.task, failed)),
        }
    }

    /// Asks for the whole result. None if the task has not ended.
    async fn fetch_whole(&mut self) -> Result<Option<(Status, Outcome)>, Error> {
        let answer =
            watch::wait_for_result(self.watch.legacy.clone(), self.watch.task.clone(), self.watch.registration.inbox.clone()).await;
        let Some((status, outcome)) = self.watch.read_result(answer).await? else { return Ok(None) };
        // The blocks of the whole result are the segments.
        if let Outcome::Result(finished) = &outcome {
            for (seq, block) in (0..).zip(&finished.content) {
                self.watch.order.take(seq, Payload::from(json!([block])));
                self.watch.hand_out().await;
            }
        }
        Ok(Some((status, outcome)))
    }

    async fn end(self, content: Vec<Value>) -> Result<Outcome, Error> {
        let mut raw = json!({"content": content, "isError": self.segments.is_error()});
        if let Some(structured) = self.segments.structured() {
            raw["structuredContent"] = structured;
        }
        let finished =
            ToolResult::read(Payload::from(raw)).map_err(|reason| self.watch.legacy.link.error(RequestError::Protocol(reason)))?;
        // A cancelled and a failed task end alike here; the task's state says which it was.
        if finished.is_error
            && let Ok(snapshot) = self.watch.legacy.get_task(&self.watch.task).await
            && snapshot.status == Status::Cancelled
        {
            return self.watch.finish(snapshot.status, Outcome::Cancelled { message: snapshot.message }).await;
        }
        let status = if finished.is_error { Status::Failed } else { Status::Completed };
        self.watch.finish(status, Outcome::Result(finished)).await
    }
}
