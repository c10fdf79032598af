//! The client's end of a byte stream: one message a line, and only what its test sends.

use std::sync::Arc;

use serde_json::Value;
use taskwire::{
    clock::SystemClock,
    server::{Config, Server},
    tool::Registry,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines},
    sync::oneshot,
    task::JoinHandle,
};

use crate::kit::{TempDir, server_in, with_timeout};

/// Bytes that wait in each direction.
const ROOM: usize = 64 * 1024;

pub(crate) type Output = Lines<BufReader<DuplexStream>>;

/// A stream to a server. Dropping it ends the input.
pub(crate) struct Pipe {
    /// Until it is ended.
    input: Option<DuplexStream>,
    output: Output,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<std::io::Result<()>>,
    /// Where the server keeps its tasks, if that is to go away with this.
    _dir: Option<TempDir>,
}

impl Pipe {
    /// A server with these tools, and a stream to it.
    pub(crate) fn start(tools: Registry, config: Config) -> Self {
        let dir = TempDir::new();
        let server = server_in(&dir, tools, config, Arc::new(SystemClock));
        Self { _dir: Some(dir), ..Self::to(&server) }
    }

    pub(crate) fn to(server: &Server) -> Self {
        Self::with_room(server, ROOM, ROOM)
    }

    /// So many bytes can wait for the server to read them, and so many for us.
    pub(crate) fn with_room(server: &Server, input: usize, output: usize) -> Self {
        let (input, server_input) = tokio::io::duplex(input);
        let (server_output, output) = tokio::io::duplex(output);
        let (stop, stopped) = oneshot::channel::<()>();
        let server = server.clone();
        let serving = tokio::spawn(async move {
            let stopped = async {
                // A pipe that was dropped has sent no signal to stop.
                if stopped.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            server.serve_stream(server_input, server_output, stopped).await
        });
        Self { input: Some(input), output: BufReader::new(output).lines(), stop: Some(stop), serving, _dir: None }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().expect("the input is open");
        with_timeout("room in the pipe", input.write_all(bytes)).await.expect("writable");
    }

    pub(crate) async fn send(&mut self, message: &Value) {
        self.write(format!("{message}\n").as_bytes()).await;
    }

    /// The next line, whenever it comes; none at the end.
    pub(crate) async fn next_line(&mut self) -> Option<String> {
        self.output.next_line().await.expect("readable")
    }

    /// The next line, which comes soon; none at the end.
    pub(crate) async fn line(&mut self) -> Option<String> {
        with_timeout("the next line", self.next_line()).await
    }

    /// The message on the next line.
    pub(crate) async fn message(&mut self) -> Value {
        let line = self.line().await.expect("the stream goes on");
        serde_json::from_str(&line).expect("JSON")
    }

    /// Ends the input.
    pub(crate) fn end(&mut self) {
        self.input = None;
    }

    /// Gives the signal to stop.
    pub(crate) fn stop(&mut self) {
        self.stop.take().expect("stopped once").send(()).expect("it serves");
    }

    pub(crate) fn is_served(&self) -> bool {
        !self.serving.is_finished()
    }

    /// Waits until the server has ended the stream.
    pub(crate) async fn ended(&mut self) {
        with_timeout("the end of the server", &mut self.serving).await.expect("no panic").expect("a clean end");
    }

    /// Its two directions, each for itself.
    pub(crate) fn split(self) -> (DuplexStream, Output) {
        (self.input.expect("the input is open"), self.output)
    }
}
