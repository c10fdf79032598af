//! The client that the official conformance suite tests: `conformance_client URL`, with the scenario in the environment.
//!
//! The suite serves each scenario, and judges what the client sends. Here is what a user of the library would write to get
//! as far as the scenario goes; all else is the library's. The last line is `ok` if everything went as it should, which
//! includes to be refused where a good client must not go on.
//! `scripts/conform.sh` runs the suite with it.

use std::{env, error::Error, process::ExitCode, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use taskwire::client::{
    self, Answer, Client, ClientCapabilities, Consent, Event, Grant, OAuth, OAuthSettings, Options, Outcome, QuestionKind, Target,
    answer_with, form::Form,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const USAGE: &str = "usage: MCP_CONFORMANCE_SCENARIO=NAME conformance_client URL";
/// The suite kills a client after 30 seconds, and nobody learns why.
const TIMEOUT: Duration = Duration::from_secs(25);
/// The suite knows this address, and asks nobody there.
const CLIENT_METADATA_URL: &str = "https://conformance-test.local/client-metadata.json";
/// Nobody listens there: the browser's part is played by [`Redirected`].
const REDIRECT_URI: &str = "http://localhost:3000/callback";
/// Where something is wrong with the authorization server, or there is no end of scopes to ask for.
const REFUSED: [&str; 7] = [
    "resource-mismatch",
    "iss-supported-missing",
    "iss-wrong-issuer",
    "iss-unexpected",
    "iss-normalized",
    "metadata-issuer-mismatch",
    "scope-retry-limit",
];

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> ExitCode {
    let played = match tokio::time::timeout(TIMEOUT, run()).await {
        Ok(played) => played,
        Err(_) => Err(format!("not through after {} seconds", TIMEOUT.as_secs()).into()),
    };
    match played {
        Ok(()) => {
            println!("ok");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("conformance_client: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result {
    let (scenario, url) = (env::var("MCP_CONFORMANCE_SCENARIO"), env::args().next_back());
    let (Ok(scenario), Some(url)) = (scenario, url) else { return Err(USAGE.into()) };
    let context = match env::var("MCP_CONFORMANCE_CONTEXT") {
        Ok(context) => serde_json::from_str(&context)?,
        Err(_) => Value::Null,
    };
    play(&scenario, &url, &context).await
}

async fn play(scenario: &str, url: &str, context: &Value) -> Result {
    let target: Target = url.parse()?;
    let options = Options { name: "taskwire-conformance".to_owned(), ..Options::default() };
    match scenario {
        "initialize" | "json-schema-ref-no-deref" => list(target, options).await,
        "tools_call" => tools_call(target, options).await,
        "elicitation-sep1034-client-defaults" => defaults(target, options).await,
        "sse-retry" => reconnection(target, options).await,
        "request-metadata" => {
            let asks =
                ClientCapabilities { sampling: true, roots: Some(vec![json!({"uri": "file:///work"})]), ..ClientCapabilities::default() };
            list(target, Options { capabilities: asks, ..options }).await
        }
        "sep-2322-client-request-state" => rounds(target, options).await,
        "http-standard-headers" | "http-invalid-tool-headers" => call_all(target, options).await,
        "http-custom-headers" => call_listed(target, options, context).await,
        "json-schema-2020-12-preservation" => echo_schema(target, options).await,
        // Skills are not spoken here: all there is to do is to leave them alone.
        name if name.starts_with("sep-2640-client-") => list(target, options).await,
        name => match name.strip_prefix("auth/") {
            Some(name) => sign_in(name, url, options, context).await,
            None => Err(format!("there is nothing for the scenario `{name}` yet").into()),
        },
    }
}

/// Calls a tool that succeeds, and returns its text.
async fn call(client: &Client, tool: &str, args: Value) -> Result<String> {
    text(client.call(tool, args).await?)
}

fn text(outcome: Outcome) -> Result<String> {
    match outcome {
        Outcome::Result(result) if !result.is_error => Ok(result.text()),
        other => Err(format!("a result was expected, not {other:?}").into()),
    }
}

fn expect_text(expected: &str, text: &str) -> Result {
    if text == expected { Ok(()) } else { Err(format!("`{expected}` was expected, not `{text}`").into()) }
}

async fn list(target: Target, options: Options) -> Result {
    let client = Client::connect(target, options).await?;
    client.tools().await?;
    client.close().await;
    Ok(())
}

async fn tools_call(target: Target, options: Options) -> Result {
    let client = Client::connect(target, options).await?;
    let reply = call(&client, "add_numbers", json!({"a": 2, "b": 3})).await?;
    expect_text("The sum of 2 and 3 is 5", &reply)?;
    client.close().await;
    Ok(())
}

/// A form that is accepted as it is.
async fn defaults(target: Target, options: Options) -> Result {
    let answers = answer_with(|input| async move {
        match &input.kind {
            QuestionKind::Form { schema } => Answer::accept(Form::defaults(schema)),
            _ => Answer::cancel(),
        }
    });
    let client = Client::connect(target, Options { question_handler: Some(answers), ..options }).await?;
    let reply = call(&client, "test_client_elicitation_defaults", json!({})).await?;
    if !reply.starts_with("Elicitation completed") {
        return Err(reply.into());
    }
    client.close().await;
    Ok(())
}

/// A stream that the server closes before the result.
async fn reconnection(target: Target, options: Options) -> Result {
    let client = Client::connect(target, options).await?;
    let reply = call(&client, "test_reconnection", json!({})).await?;
    expect_text("Reconnection test completed successfully", &reply)?;
    client.close().await;
    Ok(())
}

/// Calls that are answered by a question.
async fn rounds(target: Target, options: Options) -> Result {
    let client = Client::connect(target, options).await?;
    expect_text("echo-state-ok", &call_with_question(&client, "test_mrtr_echo_state").await?)?;
    expect_text("no-state-ok", &call_with_question(&client, "test_mrtr_no_state").await?)?;
    expect_text("no-result-type-test-ok", &call(&client, "test_mrtr_no_result_type", json!({})).await?)?;
    client.close().await;
    Ok(())
}

/// Calls a tool that asks, and another one while it waits for the answer.
async fn call_with_question(client: &Client, tool: &str) -> Result<String> {
    let mut pending_call = client.start(tool, json!({})).await?;
    while let Some(event) = pending_call.next().await {
        match event? {
            Event::Question(input) => {
                expect_text("unrelated-ok", &call(client, "test_mrtr_unrelated", json!({})).await?)?;
                pending_call.answer(&input.key, Answer::accept(json!({"confirmed": true}))).await?;
            }
            Event::Done(outcome) => return text(outcome),
            _ => {}
        }
    }
    Err(format!("`{tool}` has no end").into())
}

/// Calls every tool that the client lets us see.
async fn call_all(target: Target, options: Options) -> Result {
    let client = Client::connect(target, options).await?;
    for tool in client.tools().await? {
        call(&client, &tool.name, json!({"region": "us-west1"})).await?;
    }
    client.close().await;
    Ok(())
}

/// Makes the calls that the suite lists.
async fn call_listed(target: Target, options: Options, context: &Value) -> Result {
    let calls = context["toolCalls"].as_array().ok_or("the scenario gives no calls")?;
    let client = Client::connect(target, options).await?;
    for listed in calls {
        let tool = listed["name"].as_str().ok_or("a call has no name")?;
        call(&client, tool, listed["arguments"].clone()).await?;
    }
    client.close().await;
    Ok(())
}

/// Sends a tool's schema back as it came.
async fn echo_schema(target: Target, options: Options) -> Result {
    let client = Client::connect(target, options).await?;
    let tools = client.tools().await?;
    let tool = tools.iter().find(|tool| tool.name == "json_schema_2020_12_tool").ok_or("there is no tool with the schema")?;
    call(&client, "json_schema_echo", json!({"schema": tool.input_schema})).await?;
    client.close().await;
    Ok(())
}

/// Signs in, lists the tools, and calls the one there is.
async fn sign_in(scenario: &str, url: &str, options: Options, context: &Value) -> Result {
    let credentials = OAuth::new(url, settings(scenario, context))?;
    let options = Options { credentials: Some(Arc::new(credentials)), ..options };
    let signed_in = use_server(url.parse()?, options).await;
    if !REFUSED.contains(&scenario) {
        return signed_in;
    }
    match signed_in {
        Ok(()) => Err("a good client would not have gone so far".into()),
        Err(error) => match error.downcast_ref() {
            Some(client::Error::Auth(_) | client::Error::Unauthorized { .. }) => {
                println!("refused: {error}");
                Ok(())
            }
            _ => Err(error),
        },
    }
}

async fn use_server(target: Target, options: Options) -> Result {
    let client = Client::connect(target, options).await?;
    client.tools().await?;
    expect_text("test", &call(&client, "test-tool", json!({})).await?)?;
    client.close().await;
    Ok(())
}

/// How to sign in; the suite tells what is known already.
fn settings(scenario: &str, context: &Value) -> OAuthSettings {
    let context_text = |name: &str| context[name].as_str().map(str::to_owned);
    let grant = match scenario {
        "client-credentials-basic" => Grant::ClientSecret,
        #[cfg(feature = "oauth-extensions")]
        "client-credentials-jwt" => Grant::PrivateKey {
            pem: context_text("private_key_pem").unwrap_or_default(),
            algorithm: context_text("signing_algorithm").unwrap_or_default(),
        },
        #[cfg(feature = "oauth-extensions")]
        "enterprise-managed-authorization" => Grant::Enterprise {
            issuer: context_text("idp_issuer").unwrap_or_default(),
            token_endpoint: context_text("idp_token_endpoint").unwrap_or_default(),
            client_id: context_text("idp_client_id").unwrap_or_default(),
            id_token: context_text("idp_id_token").unwrap_or_default(),
        },
        _ => Grant::AuthorizationCode(Arc::new(RedirectConsent)),
    };
    OAuthSettings {
        client_id: context_text("client_id"),
        client_secret: context_text("client_secret"),
        client_metadata_url: Some(CLIENT_METADATA_URL.to_owned()),
        ..OAuthSettings::new(grant)
    }
}

/// Agrees to everything: asks the authorization server as a browser would, and takes the address it is sent on to.
#[derive(Debug)]
struct RedirectConsent;

impl Consent for RedirectConsent {
    fn redirect_uri(&self) -> String {
        REDIRECT_URI.to_owned()
    }

    fn authorize<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<String, client::Error>> {
        Box::pin(async move { location(url).await.map_err(|error| client::Error::Auth(error.to_string())) })
    }
}

/// Where a request to this address is sent on to.
async fn location(url: &str) -> Result<String> {
    let (host, path) = url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).ok_or("no address of this machine")?;
    let mut stream = TcpStream::connect(host).await?;
    stream.write_all(format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let header =
        |line: &str| line.split_once(": ").filter(|(name, _)| name.eq_ignore_ascii_case("location")).map(|(_, value)| value.to_owned());
    let head = answer.split("\r\n\r\n").next().unwrap_or_default();
    head.lines().find_map(header).ok_or_else(|| format!("not sent on: {}", answer.lines().next().unwrap_or_default()).into())
}
