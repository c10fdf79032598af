//! The options with which each client command connects, and the connection itself.

use std::{fmt, net::IpAddr, path::PathBuf, pin::pin, sync::Arc, time::Duration};

use clap::Args;
use taskwire::client::{self, Bearer, Client, ClientCapabilities, Credentials, Era, Ledger, Options, Target, Timing};
use taskwire_core::TraceContext;
use tokio::time::timeout;

use super::{
    client_config::{EraChoice, Server},
    exit::Problem,
    sign_in::{SignIn, SignInPolicy},
};
use crate::term::{escape, question_dialog, stderr};

const HEADING: &str = "Connection";
/// How long to wait for a server that does not respond at all. Once it has, the library's give-up time applies.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for a slow response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(25);
/// When to print that it waits: a server that refuses at once needs no notice.
const NOTICE_DELAY: Duration = Duration::from_millis(250);
/// How long a program that is started may take before that is printed. Some download themselves first.
const START_NOTICE_DELAY: Duration = Duration::from_secs(8);
/// How much longer it may take in all.
const START_TIMEOUT_REST: Duration = Duration::from_secs(52);
/// How long a server gets to end in good order.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How to reach the server.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ConnectionArgs {
    /// Bearer token [default: the server's `token` in client.toml; $TASKWIRE_TOKEN for a server that is not in there, if it
    /// is this machine or reached by https]
    #[arg(long, value_name = "TOKEN", help_heading = HEADING)]
    token: Option<Secret>,
    /// Sign in if the server requires it: prints an address to open, and remembers the sign-in
    #[arg(long, conflicts_with = "token", help_heading = HEADING)]
    oauth: bool,
    /// HTTP header to send with each request; can be repeated
    #[arg(long = "header", value_name = "'NAME: VALUE'", help_heading = HEADING)]
    headers: Vec<Secret>,
    /// Which generation of MCP the server speaks
    #[arg(long, value_enum, value_name = "ERA", default_value_t = EraChoice::Auto, help_heading = HEADING)]
    era: EraChoice,
}

/// Text that must not get into logs.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What a command wants of its connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConnectionNeeds {
    /// Where tasks are remembered.
    pub(crate) ledger: Option<Ledger>,
    /// Where sign-ins are kept.
    pub(crate) sign_in_dir: Option<PathBuf>,
    /// The era in which the task was begun, if there is one.
    pub(crate) era: Option<Era>,
    /// The session that the task is bound to, if any.
    pub(crate) session: Option<String>,
    /// Where in a trace the calls belong, if anywhere.
    pub(crate) trace: Option<TraceContext>,
    /// Whether output is wanted while it is produced.
    pub(crate) stream: bool,
    /// Whether nobody may be asked anything.
    pub(crate) is_unattended: bool,
    /// Whether other servers are asked at the same time: what is meant for one of them must not be sent to all.
    pub(crate) is_one_of_many: bool,
    /// Whether to fail at once if the server cannot be reached.
    pub(crate) fails_fast: bool,
}

/// The credentials and headers for one server.
#[derive(Default)]
struct Access {
    credentials: Option<Arc<dyn Credentials>>,
    sign_in: Option<Arc<SignIn>>,
}

impl From<String> for Access {
    fn from(token: String) -> Self {
        Self { credentials: Some(Arc::new(Bearer(token))), sign_in: None }
    }
}

impl From<SignIn> for Access {
    fn from(sign_in: SignIn) -> Self {
        let sign_in = Arc::new(sign_in);
        Self { credentials: Some(sign_in.clone()), sign_in: Some(sign_in) }
    }
}

impl ConnectionArgs {
    /// Whether an option is meant for one server only.
    pub(crate) fn has_server_options(&self) -> bool {
        self.token.is_some() || self.oauth || !self.headers.is_empty() || self.era != EraChoice::Auto
    }

    pub(crate) async fn open(&self, server: &Server, needs: ConnectionNeeds) -> Result<Client, Problem> {
        let access = self.access(server, &needs)?;
        let is_unattended = needs.is_unattended;
        let options = self.options(server, needs, access.credentials)?;
        let problem = match connect(server, options, access.sign_in.as_deref(), is_unattended).await {
            Ok(client) => return Ok(client),
            Err(problem) => problem,
        };
        let is_signed_in = access.sign_in.is_some_and(|sign_in| sign_in.is_requested());
        if !problem.is_unauthorized() || self.token.is_some() || is_signed_in || !env_token_withheld(server) {
            return Err(problem);
        }
        let why = "it is for this machine and https only, and for servers that client.toml does not name";
        Err(problem.and(&format!("; $TASKWIRE_TOKEN was not sent: {why}")))
    }

    fn options(&self, server: &Server, needs: ConnectionNeeds, credentials: Option<Arc<dyn Credentials>>) -> Result<Options, Problem> {
        let settings = server.settings.as_ref();
        let mut headers = settings.map(|known| known.headers()).transpose()?.unwrap_or_default();
        for Secret(text) in &self.headers {
            let header = header(text).ok_or_else(|| Problem::usage("a --header is not 'NAME: VALUE'"))?;
            headers.retain(|(name, _)| !name.eq_ignore_ascii_case(&header.0));
            headers.push(header);
        }
        let usual = Timing::default();
        let timing = if needs.fails_fast { Timing { give_up_after: Duration::ZERO, ..usual } } else { usual };
        let era = self.era.era().or(needs.era).or_else(|| settings.and_then(|known| known.era.era()));
        Ok(Options {
            name: "taskwire".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            era,
            session: needs.session,
            credentials,
            headers,
            trusted_certificates: settings.map(|known| known.trusted_certificates()).transpose()?.flatten(),
            client_certificate: settings.map(|known| known.client_certificate()).transpose()?.flatten(),
            // This client has no language model.
            capabilities: ClientCapabilities { form: true, url: true, sampling: false, roots: None },
            stream_output: needs.stream,
            trace: needs.trace,
            ledger: needs.ledger.map(|ledger| Arc::new(ledger) as Arc<dyn client::CallRecorder>),
            timing,
            ..Options::default()
        })
    }

    /// Precedence: the command line, the server's settings in client.toml, the environment, an earlier sign-in.
    fn access(&self, server: &Server, needs: &ConnectionNeeds) -> Result<Access, Problem> {
        if let Some(Secret(token)) = &self.token {
            return Ok(token.clone().into());
        }
        let settings = server.settings.as_ref();
        if !self.oauth
            && let Some(token) = settings.map(|known| known.token()).transpose()?.flatten()
        {
            return Ok(token.into());
        }
        let is_wanted = self.oauth || settings.is_some_and(|known| known.oauth);
        if !is_wanted
            && !needs.is_one_of_many
            && may_get_env_token(server)
            && let Some(token) = env_token()
        {
            return Ok(token.into());
        }
        let Target::Url(url) = &server.target else {
            return if self.oauth {
                Err(Problem::usage(format!("`--oauth` is for servers with a URL: {} cannot be signed in to", server.target)))
            } else {
                Ok(Access::default())
            };
        };
        let policy = match (is_wanted, needs.is_unattended) {
            (_, true) => SignInPolicy::Never,
            (true, false) => SignInPolicy::WhenChallenged,
            (false, false) => SignInPolicy::WhenExpired,
        };
        if !is_wanted && needs.sign_in_dir.is_none() {
            return Ok(Access::default());
        }
        Ok(SignIn::new(url, needs.sign_in_dir.clone(), policy)?.into())
    }
}

/// Closes the connection, if the server does so in time.
pub(crate) async fn close(client: Client) {
    let _ = timeout(CLOSE_TIMEOUT, client.close()).await;
}

async fn connect(server: &Server, options: Options, sign_in: Option<&SignIn>, is_unattended: bool) -> Result<Client, Problem> {
    let say = || {
        if !is_unattended {
            stderr::write(&format!("taskwire: {} has not answered yet; waiting\n", escape::line(&server.name())));
        }
    };
    if !matches!(server.target, Target::Url(_)) {
        let mut connecting = pin!(Client::connect(server.target.clone(), options));
        if let Ok(connected) = timeout(START_NOTICE_DELAY, &mut connecting).await {
            return Ok(connected?);
        }
        say();
        let waited = (START_NOTICE_DELAY + START_TIMEOUT_REST).as_secs();
        let silent = |_| Problem::protocol(format!("{} sent no MCP message within {waited} s", server.target));
        return Ok(timeout(START_TIMEOUT_REST, connecting).await.map_err(silent)??);
    }
    if let Some(connected) = connect_within(CONNECT_TIMEOUT, server, options.clone(), sign_in).await {
        return Ok(connected?);
    }
    // Connect once more without retries, to learn the reason.
    let hasty = Options { timing: Timing { give_up_after: Duration::ZERO, ..options.timing }, ..options.clone() };
    let mut learning = pin!(connect_within(RESPONSE_TIMEOUT, server, hasty, sign_in));
    let learnt = match timeout(NOTICE_DELAY, &mut learning).await {
        Ok(learnt) => learnt,
        Err(_) => {
            say();
            learning.await
        }
    };
    match learnt {
        Some(Ok(_)) => Ok(Client::connect(server.target.clone(), options).await?),
        Some(Err(error)) => Err(error.into()),
        None => {
            let waited = (CONNECT_TIMEOUT + RESPONSE_TIMEOUT).as_secs();
            Err(Problem::protocol(format!("cannot reach {}: no answer within {waited} s", server.target)))
        }
    }
}

/// Connects within this time. A person who signs in may take longer.
async fn connect_within(
    limit: Duration,
    server: &Server,
    options: Options,
    sign_in: Option<&SignIn>,
) -> Option<Result<Client, client::Error>> {
    let mut connecting = pin!(Client::connect(server.target.clone(), options));
    match timeout(limit, &mut connecting).await {
        Ok(connected) => Some(connected),
        Err(_) if sign_in.is_some_and(SignIn::is_under_way) => Some(connecting.await),
        Err(_) => None,
    }
}

fn env_token() -> Option<String> {
    std::env::var("TASKWIRE_TOKEN").ok().map(|token| token.trim().to_owned()).filter(|token| !token.is_empty())
}

/// The token for a server of which only the URL is known: the one that was typed, or the environment's if nobody on the way can read it.
pub(crate) fn token_for(url: &str, typed: Option<&Secret>) -> Option<String> {
    typed.map(|Secret(token)| token.clone()).or_else(|| env_token().filter(|_| is_local_or_encrypted(url)))
}

/// Whether the environment's token is withheld from this server.
fn env_token_withheld(server: &Server) -> bool {
    env_token().is_some() && !may_get_env_token(server)
}

/// Whether the environment's token, which is meant for no server in particular, may go to this one: client.toml does not have the server,
/// and nobody on the way can read the token.
fn may_get_env_token(server: &Server) -> bool {
    server.settings.is_none() && matches!(&server.target, Target::Url(url) if is_local_or_encrypted(url))
}

fn is_local_or_encrypted(url: &str) -> bool {
    let url = url.to_ascii_lowercase();
    if url.starts_with("https://") {
        return true;
    }
    let (before, host, _) = question_dialog::parts(&url);
    let host = match host.strip_prefix('[') {
        Some(host) => host.split(']').next(),
        None => host.split(':').next(),
    };
    before.starts_with("http://") && host.is_some_and(|host| host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()))
}

/// The name and the value of a header.
fn header(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once(':')?;
    let (name, value) = (name.trim(), value.trim());
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c));
    (is_name && !value.chars().any(char::is_control)).then(|| (name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_a_name_and_a_value() {
        assert_eq!(header("X-Team:  blue: 1 "), Some(("X-Team".to_owned(), "blue: 1".to_owned())));
        assert_eq!(header("X-Empty:"), Some(("X-Empty".to_owned(), String::new())));
        for text in ["X-Team", ": x", "X Team: x", "X: a\nb"] {
            assert_eq!(header(text), None, "{text}");
        }
    }

    #[test]
    fn tokens_are_not_for_logs() {
        let connection = ConnectionArgs {
            token: Some("s3cret".to_owned().into()),
            headers: vec!["A: s3cret".to_owned().into()],
            ..ConnectionArgs::default()
        };
        assert!(!format!("{connection:?}").contains("s3cret"));
    }

    #[test]
    fn a_token_for_no_server_in_particular_goes_only_where_nobody_can_read_it() {
        let local =
            ["http://localhost:8787/mcp", "HTTP://127.0.0.1/mcp", "http://127.9.9.9:1", "http://[::1]:8787/mcp", "http://a@localhost/"];
        for url in ["https://host/mcp", "HTTPS://host"].iter().chain(&local) {
            assert!(is_local_or_encrypted(url), "{url}");
        }
        for url in [
            "http://host/mcp",
            "http://localhost.example/mcp",
            "http://localhost@host/mcp",
            "http://localhost:80@host/mcp",
            "http://127.0.0.1.example/",
            "http://10.0.0.1/",
            "http://host\\@localhost/",
            "http://host?@localhost",
            "ftp://localhost",
            "",
        ] {
            assert!(!is_local_or_encrypted(url), "{url}");
        }
    }

    #[test]
    fn what_is_for_one_server_is_told_from_what_is_for_all() {
        assert!(!ConnectionArgs::default().has_server_options());
        assert!(ConnectionArgs { headers: vec!["A: b".to_owned().into()], ..ConnectionArgs::default() }.has_server_options());
        assert!(ConnectionArgs { oauth: true, ..ConnectionArgs::default() }.has_server_options());
    }
}
