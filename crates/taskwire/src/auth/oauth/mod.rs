//! Tokens that somebody else issues: this server as a resource server of OAuth 2.1.
//!
//! A token that can be read (a JWT) names its issuer, whose keys (`jwks`) must have signed it. About any other token, and about all tokens
//! of an issuer with `introspection`, the issuer is asked. Either way `issuer` checks what the token claims: from whom it comes, for whom
//! it is, and until when. No token is sent to anybody but its issuer.

mod fetch;
mod introspection;
mod issuer;
mod jwks;
mod jwt;
mod signature;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt};
use hyper::Uri;
use sha2::{Digest, Sha256};
use taskwire_core::Timestamp;

pub use self::issuer::{Introspection, InvalidIssuer, Issuer};
use self::{
    fetch::{Fetch, HttpFetch},
    introspection::{Hash, Introspector},
    issuer::{Proof, ReadyIssuer},
    jwks::{Freshness, KeySet},
    jwt::Jwt,
};
use super::{Denied, Identification, Identity, metadata::canonical};

/// A token that no issuer has issued.
const UNKNOWN_TOKEN: &str = "taskwire-doctor";

/// The issuers whose tokens a server takes.
pub struct Issuers {
    issuers: Vec<ReadyIssuer>,
}

impl fmt::Debug for Issuers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.issuers.iter().map(|issuer| &issuer.url)).finish()
    }
}

impl Issuers {
    /// Takes the tokens of these issuers. Clocks may differ by `leeway`. Nobody is asked anything before a token comes.
    ///
    /// # Errors
    /// When the tokens of an issuer cannot be checked as it is described.
    pub fn new(issuers: Vec<Issuer>, leeway: Duration) -> Result<Self, InvalidIssuer> {
        Self::with_fetch(issuers, leeway, Arc::new(HttpFetch::default()))
    }

    fn with_fetch(issuers: Vec<Issuer>, leeway: Duration, fetch: Arc<dyn Fetch>) -> Result<Self, InvalidIssuer> {
        let mut ready: Vec<ReadyIssuer> = Vec::with_capacity(issuers.len());
        for (index, issuer) in issuers.into_iter().enumerate() {
            if ready.iter().any(|known| is_same_issuer(&known.url, &issuer.url)) {
                return Err(InvalidIssuer { index, key: "url", reason: format!("there is an issuer `{}` already", issuer.url) });
            }
            ready.push(ReadyIssuer::new(issuer, leeway, &fetch).map_err(|(key, reason)| InvalidIssuer { index, key, reason })?);
        }
        Ok(Self { issuers: ready })
    }

    /// Asks each issuer what a token would make the server ask: its URL, and why it does not answer as it should, if so. Issuers that are
    /// asked about tokens are asked about one that nobody has.
    pub async fn examine(&self, now: Timestamp) -> Vec<(String, Result<(), String>)> {
        let mut examined = Vec::with_capacity(self.issuers.len());
        for issuer in &self.issuers {
            let answered = match &issuer.proof {
                Proof::Keys(keys) => keys.refresh(now).await,
                Proof::Introspection(introspector) => {
                    match introspector.ask(UNKNOWN_TOKEN, &Sha256::digest(UNKNOWN_TOKEN).into(), now).await {
                        Err(Denied::Unavailable(why)) => Err(why),
                        _ => Ok(()),
                    }
                }
            };
            examined.push((issuer.url.clone(), answered));
        }
        examined
    }

    /// Whom a token stands for.
    pub(super) fn identify(&self, token: &[u8], now: Timestamp) -> Identification<'_> {
        self.begin(token, now).unwrap_or_else(|denied| Identification::Ready(Err(denied)))
    }

    fn begin(&self, token: &[u8], now: Timestamp) -> Result<Identification<'_>, Denied> {
        let unknown = || Denied::invalid("the token is not known here");
        let token = std::str::from_utf8(token).map_err(|_| unknown())?;
        let Some(jwt) = Jwt::read(token)? else {
            let asked: Vec<_> = self.issuers.iter().filter_map(|issuer| Some((issuer, introspector(issuer)?))).collect();
            return if asked.is_empty() || !is_token(token) { Err(unknown()) } else { Ok(introspected(asked, token, now)) };
        };
        let issuer = jwt.issuer().and_then(|named| self.issuers.iter().find(|known| is_same_issuer(named, &known.url)));
        let issuer = issuer.ok_or_else(|| Denied::invalid("the token comes from an issuer that is not known here"))?;
        match &issuer.proof {
            Proof::Introspection(introspector) => Ok(introspected(vec![(issuer, introspector)], token, now)),
            Proof::Keys(keys) => signed(issuer, keys, jwt, now),
        }
    }
}

fn introspector(issuer: &ReadyIssuer) -> Option<&Arc<Introspector>> {
    match &issuer.proof {
        Proof::Introspection(introspector) => Some(introspector),
        Proof::Keys(_) => None,
    }
}

/// A token that one of the issuer's keys must have signed. What it claims is checked first: keys are fetched for no token that would be
/// refused all the same.
fn signed<'a>(issuer: &ReadyIssuer, keys: &'a Arc<KeySet>, jwt: Jwt, now: Timestamp) -> Result<Identification<'a>, Denied> {
    if !issuer.accepts(jwt.algorithm) {
        return Err(Denied::invalid("its algorithm is not accepted here"));
    }
    let identity = issuer.identity(&jwt.claims, now, false)?;
    let forged = || Denied::invalid("the signature of the token is wrong");
    let freshness = keys.freshness(now);
    match (keys.have_signed(&jwt), freshness) {
        (Some(true), Freshness::Fresh) => return Ok(Identification::Ready(Ok(identity))),
        (Some(true), Freshness::Aging) => {
            drop(keys.refresh(now));
            return Ok(Identification::Ready(Ok(identity)));
        }
        (Some(false), Freshness::Fresh | Freshness::Aging) => return Err(forged()),
        (None, _) | (_, Freshness::Old | Freshness::Expired) => {}
    }
    Ok(Identification::Asking(Box::pin(async move {
        let fetched = keys.refresh(now).await;
        match (keys.have_signed(&jwt), fetched) {
            (None, Ok(())) => Err(Denied::invalid("the token is signed with a key that its issuer does not have")),
            (Some(_), Err(_)) if keys.freshness(now) == Freshness::Expired => Err(keys_missing()),
            (Some(true), _) => Ok(identity),
            (Some(false), _) => Err(forged()),
            (None, Err(_)) => Err(keys_missing()),
        }
    })))
}

fn keys_missing() -> Denied {
    Denied::Unavailable("the keys of the token's issuer cannot be had just now".to_owned())
}

/// Whether a text has the characters of a token (RFC 6750): about anything else nobody is asked.
fn is_token(text: &str) -> bool {
    let text = text.trim_end_matches('=');
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte))
}

/// A token that these issuers are asked about, all at the same time.
fn introspected<'a>(asked: Vec<(&'a ReadyIssuer, &'a Arc<Introspector>)>, token: &str, now: Timestamp) -> Identification<'a> {
    let hash: Hash = Sha256::digest(token.as_bytes()).into();
    let remembered: Vec<_> = asked.iter().map(|(_, introspector)| introspector.remembered(&hash, now)).collect();
    if let Some(good) = remembered.iter().flatten().find(|outcome| outcome.is_ok()) {
        return Identification::Ready(good.clone());
    }
    if let (true, Some(Some(bad))) = (remembered.iter().all(Option::is_some), remembered.first()) {
        return Identification::Ready(bad.clone());
    }
    let token = token.to_owned();
    Identification::Asking(Box::pin(async move {
        let mut outcomes = FuturesUnordered::new();
        let mut denied = None;
        for ((issuer, introspector), remembered) in asked.into_iter().zip(remembered) {
            match remembered {
                None => outcomes.push(ask(issuer, introspector, &token, hash, now)),
                Some(Ok(identity)) => return Ok(identity),
                Some(Err(other)) => denied = denied.or(Some(other)),
            }
        }
        while let Some(outcome) = outcomes.next().await {
            match outcome {
                Ok(identity) => return Ok(identity),
                // Somebody who could not be asked may know it.
                Err(Denied::Unavailable(why)) => denied = Some(Denied::Unavailable(why)),
                Err(other) => denied = denied.or(Some(other)),
            }
        }
        Err(denied.unwrap_or(Denied::Missing))
    }))
}

/// Asks one issuer what a token is worth.
async fn ask(issuer: &ReadyIssuer, introspector: &Introspector, token: &str, hash: Hash, now: Timestamp) -> Result<Identity, Denied> {
    let outcome = introspector.ask(token, &hash, now).await.and_then(|claims| issuer.identity(&claims, now, true));
    introspector.remember(hash, now, &outcome);
    outcome
}

/// Whether two addresses are those of one issuer. They are compared letter by letter, but some leave out the slash at the end.
fn is_same_issuer(one: &str, other: &str) -> bool {
    let bare = |url: &str| url.strip_suffix('/').unwrap_or(url).to_owned();
    bare(one) == bare(other)
}

/// Whether nobody on the way can read what is sent to this address, or change what comes back.
fn is_safe(url: &str) -> bool {
    let uri: Option<Uri> = url.parse().ok().filter(|_| canonical(url).is_some());
    uri.is_some_and(|uri| {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let is_here = host.eq_ignore_ascii_case("localhost") || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        uri.scheme_str() == Some("https") || is_here
    })
}
