//! Signing in to a server (OAuth). The address is shown, never opened; the sign-in is kept beside the ledger and used from then on.

use std::{
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use taskwire::client::{self, Challenge, Credentials, LoopbackConsent, OAuth, OAuthSettings};

use crate::term::{escape, paint::Terminal, stderr};

type BoxedFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, client::Error>> + Send + 'a>>;

/// When a person is asked to sign in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignInPolicy {
    /// Whenever the server asks for it.
    WhenChallenged,
    /// Only when the server no longer accepts an earlier sign-in.
    WhenExpired,
    /// Never: an earlier sign-in must do.
    Never,
}

/// The sign-in to one server.
#[derive(Debug)]
pub(crate) struct SignIn {
    oauth: Arc<OAuth>,
    policy: SignInPolicy,
    is_under_way: AtomicBool,
}

impl SignIn {
    /// `directory` is where the sign-in is kept; without one it lasts as long as this process.
    pub(crate) fn new(server: &str, directory: Option<PathBuf>, policy: SignInPolicy) -> Result<Self, client::Error> {
        let name = escape::line(server);
        let consent = LoopbackConsent::new(move |url| show(&name, url));
        let settings = OAuthSettings { directory, ..OAuthSettings::with_consent(consent) };
        Ok(Self { oauth: Arc::new(OAuth::new(server, settings)?), policy, is_under_way: AtomicBool::new(false) })
    }

    /// Whether a person is being asked, or was: then their time counts, not the timeout.
    pub(crate) fn is_under_way(&self) -> bool {
        self.is_under_way.load(Ordering::Acquire)
    }

    /// Whether the user asked for the sign-in.
    pub(crate) fn is_requested(&self) -> bool {
        self.policy == SignInPolicy::WhenChallenged
    }

    /// Whether to ask a person because of this challenge.
    fn is_for_a_person(&self, challenge: &Challenge) -> bool {
        match self.policy {
            SignInPolicy::WhenChallenged => true,
            SignInPolicy::WhenExpired => challenge.bearer.is_some(),
            SignInPolicy::Never => false,
        }
    }
}

impl Credentials for SignIn {
    fn bearer(&self) -> BoxedFuture<'_, Option<String>> {
        Box::pin(async move {
            match self.oauth.bearer().await {
                // A sign-in that the user did not ask for must not cause an error.
                Err(error) if !self.is_requested() => {
                    tracing::debug!(%error, "a sign-in of before cannot be used");
                    Ok(None)
                }
                bearer => bearer,
            }
        })
    }

    fn challenged<'a>(&'a self, challenge: &'a Challenge) -> BoxedFuture<'a, bool> {
        Box::pin(async move {
            if !self.is_for_a_person(challenge) {
                return Ok(false);
            }
            self.is_under_way.store(true, Ordering::Release);
            let (oauth, challenge) = (self.oauth.clone(), challenge.clone());
            // On its own task: a request times out before a person is done, and its next try finds the same sign-in.
            let signing_in = tokio::spawn(async move { oauth.challenged(&challenge).await });
            signing_in.await.unwrap_or_else(|error| Err(client::Error::Auth(error.to_string())))
        })
    }
}

/// Shows the address, over the status line if that is there.
fn show(server: &str, url: &str) {
    let surroundings = Terminal::detect();
    let fresh_line = if surroundings.stderr && surroundings.colours { stderr::CLEAR } else { "" };
    let url = escape::line(url);
    stderr::write(&format!("{fresh_line}taskwire: {server} wants you to sign in; open this in a browser:\n{url}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn challenge(bearer: Option<&str>) -> Challenge {
        Challenge { url: "https://h/mcp".to_owned(), status: 401, www_authenticate: None, bearer: bearer.map(ToOwned::to_owned) }
    }

    #[test]
    fn nobody_is_asked_who_has_not_wanted_it() {
        let asks = |when, bearer| SignIn::new("https://h/mcp", None, when).expect("an address").is_for_a_person(&challenge(bearer));
        assert!(asks(SignInPolicy::WhenChallenged, None) && asks(SignInPolicy::WhenChallenged, Some("t")));
        assert!(!asks(SignInPolicy::WhenExpired, None) && asks(SignInPolicy::WhenExpired, Some("t")));
        assert!(!asks(SignInPolicy::Never, None) && !asks(SignInPolicy::Never, Some("t")));
    }

    #[test]
    fn only_an_address_can_be_signed_in_to() {
        assert!(SignIn::new("stdio:server", None, SignInPolicy::WhenChallenged).is_err());
    }
}
