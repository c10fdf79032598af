//! Tokens of issuers: each claim that may be wrong, each way to sign, when keys are fetched, and what an issuer says when asked.

mod signing;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use hmac::{Hmac, Mac};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::{Value, json};
use sha2::Sha256;
use taskwire_core::Timestamp;

use self::signing::{Signer, encoded};
use super::{
    Introspection, InvalidIssuer, Issuer, Issuers,
    fetch::{Answer, Fetch, Form},
    signature,
};
use crate::auth::{Denied, Identity, Scopes};

const ISSUER: &str = "https://idp.example";
const AUDIENCE: &str = "https://host.example/mcp";
const METADATA: &str = "https://idp.example/.well-known/openid-configuration";
const KEYS: &str = "https://idp.example/keys";
const ASK: &str = "https://idp.example/introspect";
const NOW: Timestamp = Timestamp::from_millis(1_785_196_800_000);
const LEEWAY: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// What identity providers answer, and what they were asked.
#[derive(Debug, Default)]
struct Inside {
    answers: BTreeMap<String, (u16, Value)>,
    asked: Vec<String>,
    /// What was posted, with the header that came with it.
    posted: Vec<(String, String)>,
    /// Addresses that answer only when this is empty again.
    stuck: BTreeSet<String>,
    /// How long each exchange takes, and how long all took until now.
    takes: Duration,
    took: Duration,
}

#[derive(Debug, Default)]
struct Providers(Mutex<Inside>);

impl Providers {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn says(&self, url: &str, status: u16, body: Value) {
        self.inside().answers.insert(url.to_owned(), (status, body));
    }

    /// The provider has these keys now.
    fn has(&self, keys: &[&Signer]) {
        self.says(METADATA, 200, json!({"issuer": ISSUER, "jwks_uri": KEYS}));
        self.says(KEYS, 200, json!({"keys": keys.iter().map(|key| key.jwk()).collect::<Vec<_>>()}));
    }

    fn is_down(&self) {
        self.inside().answers.clear();
    }

    /// Whoever asks there waits until nothing is stuck any more.
    fn is_stuck(&self, urls: &[&str]) {
        self.inside().stuck = urls.iter().map(|url| (*url).to_owned()).collect();
    }

    /// How often this was asked for.
    fn asked(&self, url: &str) -> usize {
        self.inside().asked.iter().filter(|asked| *asked == url).count()
    }
}

impl Fetch for Providers {
    fn fetch<'a>(&'a self, url: &'a str, form: Option<Form>) -> BoxFuture<'a, Result<Answer, String>> {
        let mut inside = self.inside();
        inside.asked.push(url.to_owned());
        inside.posted.extend(form.map(|form| (form.body, form.authorization)));
        let takes = inside.takes;
        inside.took += takes;
        let answer = inside.answers.get(url).cloned();
        drop(inside);
        Box::pin(async move {
            // Others may ask meanwhile.
            tokio::task::yield_now().await;
            while self.inside().stuck.contains(url) {
                tokio::task::yield_now().await;
            }
            let (status, body) = answer.ok_or_else(|| "nobody is there".to_owned())?;
            Ok(Answer { status, body: Bytes::from(body.to_string()) })
        })
    }

    fn monotonic(&self) -> Duration {
        self.inside().took
    }
}

fn taking(issuers: Vec<Issuer>, providers: &Arc<Providers>) -> Issuers {
    let fetch: Arc<dyn Fetch> = providers.clone();
    Issuers::with_fetch(issuers, LEEWAY, fetch).expect("issuers that can be used")
}

/// One issuer with one key, which is known at its provider.
fn plain() -> (Arc<Providers>, Issuers, Signer) {
    let (providers, signer) = (Arc::<Providers>::default(), Signer::new("k1"));
    providers.has(&[&signer]);
    let issuers = taking(vec![Issuer::new(ISSUER, [AUDIENCE])], &providers);
    (providers, issuers, signer)
}

fn seconds(at: Timestamp) -> i64 {
    at.as_millis() / 1000
}

/// The claims of a good token, with these instead of some of them; `null` takes one away.
fn claims(other: Value) -> Value {
    let mut claims = json!({"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": seconds(NOW) + 300, "scope": "mcp call"});
    for (name, value) in other.as_object().cloned().unwrap_or_default() {
        claims[name] = value;
    }
    claims.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
    claims
}

async fn outcome_at(issuers: &Issuers, token: &str, now: Timestamp) -> Result<Identity, Denied> {
    issuers.identify(token.as_bytes(), now).outcome().await
}

async fn outcome(issuers: &Issuers, token: &str) -> Result<Identity, Denied> {
    outcome_at(issuers, token, NOW).await
}

/// Why a token is refused.
#[track_caller]
fn reason(outcome: Result<Identity, Denied>) -> String {
    match outcome {
        Err(Denied::Invalid(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

fn is_unavailable(outcome: &Result<Identity, Denied>) -> bool {
    matches!(outcome, Err(Denied::Unavailable(_)))
}

/// Lets what was begun beside a request come to its end.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

// What a token claims.

#[tokio::test]
async fn a_token_that_the_issuer_has_signed_stands_for_its_subject() {
    let (providers, issuers, signer) = plain();
    let token = signer.sign(&claims(json!({})));
    let identity = outcome(&issuers, &token).await.expect("it is good");
    assert_eq!(identity.caller.as_str(), "https://idp.example#ada");
    assert_eq!(identity.scopes, Scopes::only(["call", "mcp"]));
    assert_eq!(identity.expires, Some(NOW.after(300 * SECOND + LEEWAY)), "its streams end when it is refused");
    outcome(&issuers, &token).await.expect("it is good again");
    assert_eq!((providers.asked(METADATA), providers.asked(KEYS)), (1, 1));
    assert!(!format!("{issuers:?}").contains("ada"));
}

#[tokio::test]
async fn a_token_with_one_wrong_claim_is_refused_and_nobody_is_asked() {
    let (providers, issuers, signer) = plain();
    let end = seconds(NOW);
    for (wrong, why) in [
        (json!({"iss": "https://evil.example"}), "from an issuer"),
        (json!({"iss": null}), "from an issuer"),
        (json!({"iss": ["https://idp.example"]}), "from an issuer"),
        (json!({"aud": "https://other.example/mcp"}), "audience"),
        (json!({"aud": "https://host.example/"}), "audience"),
        (json!({"aud": []}), "audience"),
        (json!({"aud": null}), "audience"),
        (json!({"aud": 5}), "audience"),
        (json!({"exp": end - 61}), "expired"),
        (json!({"exp": null}), "no end"),
        (json!({"exp": "soon"}), "no time in `exp`"),
        (json!({"nbf": end + 61}), "not valid yet"),
        (json!({"nbf": true}), "no time in `nbf`"),
        (json!({"sub": null}), "who calls (`sub`)"),
        (json!({"sub": ""}), "who calls (`sub`)"),
        (json!({"sub": 7}), "who calls (`sub`)"),
    ] {
        let token = signer.sign(&claims(wrong.clone()));
        let said = reason(outcome(&issuers, &token).await);
        assert!(said.contains(why), "{wrong}: {said}");
        assert!(!said.contains(&token[..20]), "{said}");
    }
    assert_eq!(providers.inside().asked, [""; 0], "no key is fetched for them");
}

#[tokio::test]
async fn clocks_may_differ_by_the_leeway() {
    let (_providers, issuers, signer) = plain();
    let now = seconds(NOW);
    for good in [json!({"exp": now - 59}), json!({"exp": now as f64 - 59.5}), json!({"nbf": now + 60}), json!({"exp": u64::MAX})] {
        outcome(&issuers, &signer.sign(&claims(good.clone()))).await.unwrap_or_else(|denied| panic!("{good}: {denied}"));
    }
    assert_eq!(reason(outcome(&issuers, &signer.sign(&claims(json!({"exp": now - 60})))).await), "the token has expired");
}

#[tokio::test]
async fn an_audience_may_be_written_in_several_ways_and_be_one_of_several() {
    let (providers, _, signer) = plain();
    let issuers = taking(vec![Issuer::new(ISSUER, [AUDIENCE, "api://guid"])], &providers);
    for good in [
        json!("https://host.example/mcp/"),
        json!("https://HOST.example:443/mcp"),
        json!(["https://other.example", "https://host.example/mcp"]),
        json!("api://guid"),
    ] {
        outcome(&issuers, &signer.sign(&claims(json!({"aud": good})))).await.unwrap_or_else(|denied| panic!("{good}: {denied}"));
    }
    for bad in
        [json!("https://host.example/MCP"), json!("http://host.example/mcp"), json!("API://guid"), json!("https://host.example:8443/mcp")]
    {
        assert!(reason(outcome(&issuers, &signer.sign(&claims(json!({"aud": bad})))).await).contains("audience"), "{bad}");
    }
    let any = taking(vec![Issuer::new(ISSUER, ["*"])], &providers);
    outcome(&any, &signer.sign(&claims(json!({"aud": null})))).await.expect("every token of this issuer is taken");
}

#[tokio::test]
async fn the_configuration_says_which_claims_name_the_caller_and_its_scopes() {
    let (providers, plain, signer) = plain();
    let scopes = |identity: Identity| identity.scopes;
    let token = signer.sign(&claims(json!({"scope": null, "scp": ["a b", "c"]})));
    assert_eq!(outcome(&plain, &token).await.map(scopes), Ok(Scopes::only(["a", "b", "c"])));
    assert_eq!(
        outcome(&plain, &signer.sign(&claims(json!({"scope": null})))).await.map(scopes),
        Ok(Scopes::only([""; 0])),
        "none, not all"
    );
    let issuer =
        Issuer { caller_claim: "client_id".to_owned(), scope_claim: Some("permissions".to_owned()), ..Issuer::new(ISSUER, [AUDIENCE]) };
    let other = taking(vec![issuer], &providers);
    let identity = outcome(&other, &signer.sign(&claims(json!({"client_id": "robot", "permissions": ["x"]})))).await.expect("it is good");
    assert_eq!((identity.caller.as_str(), identity.scopes), ("https://idp.example#robot", Scopes::only(["x"])));
    let long = outcome(&plain, &signer.sign(&claims(json!({"sub": "x".repeat(600)})))).await.expect("it is good").caller;
    assert!(long.as_str().starts_with("https://idp.example#sha256:") && long.as_str().len() < 500, "{long:?}");
}

#[tokio::test]
async fn a_slash_at_the_end_makes_no_other_issuer_and_anything_else_does() {
    let (providers, _, signer) = plain();
    let issuers = taking(vec![Issuer::new("https://idp.example/", [AUDIENCE])], &providers);
    let identity = outcome(&issuers, &signer.sign(&claims(json!({})))).await.expect("it is good");
    assert_eq!(identity.caller.as_str(), "https://idp.example/#ada", "named as in the configuration, whichever way the token says it");
    for other in ["https://IDP.example", "https://idp.example:443", "https://idp.example//", "http://idp.example", "https://idp.example/a"]
    {
        reason(outcome(&issuers, &signer.sign(&claims(json!({"iss": other})))).await);
    }
}

// How it is signed.

#[tokio::test]
async fn only_signatures_that_are_allowed_and_good_count() {
    let (providers, issuers, signer) = plain();
    let good = claims(json!({}));
    let unsigned = |header: Value| format!("{}.{}.", encoded(header.to_string().as_bytes()), encoded(good.to_string().as_bytes()));
    for algorithm in ["none", "None", "NONE", "", "ES999"] {
        let said = reason(outcome(&issuers, &unsigned(json!({"alg": algorithm, "kid": "k1"}))).await);
        assert!(said.contains("algorithm"), "{algorithm}: {said}");
    }
    // The public key is no secret: whoever has it must not be able to sign with it.
    let public = signer.jwk()["x"].as_str().expect("a number").to_owned();
    let message = unsigned(json!({"alg": "HS256", "kid": "k1"}));
    let message = message.trim_end_matches('.');
    let mac = Hmac::<Sha256>::new_from_slice(public.as_bytes()).expect("a key").chain_update(message).finalize().into_bytes();
    assert!(reason(outcome(&issuers, &format!("{message}.{}", encoded(&mac))).await).contains("algorithm"));

    for kind in ["logout+jwt", "dpop+jwt"] {
        let other = signer.sign_with(&json!({"alg": "ES256", "kid": "k1", "typ": kind}), &good);
        assert!(reason(outcome(&issuers, &other).await).contains("no access token"), "{kind}");
    }
    let access = signer.sign_with(&json!({"alg": "ES256", "kid": "k1", "typ": "at+JWT"}), &good);
    assert!(outcome(&issuers, &access).await.is_ok());
    let critical = signer.sign_with(&json!({"alg": "ES256", "kid": "k1", "crit": ["b64"], "b64": false}), &good);
    assert!(reason(outcome(&issuers, &critical).await).contains("conditions"));
    let token = signer.sign(&good);
    let (message, _) = token.rsplit_once('.').expect("a signature");
    for forged in [format!("{message}.{}", encoded(&[7; 64])), format!("{message}."), Signer::new("k1").sign(&good)] {
        assert!(reason(outcome(&issuers, &forged).await).contains("signature"), "{forged}");
    }
    let strict = Issuer { algorithms: vec!["RS256".to_owned()], ..Issuer::new(ISSUER, [AUDIENCE]) };
    let strict = taking(vec![strict], &providers);
    assert!(reason(outcome(&strict, &token).await).contains("algorithm"), "it is not in the list");
}

#[tokio::test]
async fn what_cannot_be_read_is_no_token() {
    let (providers, issuers, signer) = plain();
    let token = signer.sign(&claims(json!({})));
    let parts: Vec<&str> = token.split('.').collect();
    let odd = [
        "opaque".to_owned(),
        "a.b.c".to_owned(),
        format!("{}.{}", parts[0], parts[1]),
        format!("{}.x.{}", parts[0], parts[2]),
        format!("{}.{}.{}.{}", parts[0], parts[1], parts[2], parts[2]),
        format!("{token}="),
        format!("{}.{}.{}", encoded(b"[1]"), parts[1], parts[2]),
    ];
    for odd in odd {
        reason(outcome(&issuers, &odd).await);
    }
    assert!(matches!(issuers.identify(b"\xff", NOW).outcome().await, Err(Denied::Invalid(_))));
    assert_eq!(providers.inside().asked, [""; 0]);
}

#[test]
fn signatures_that_others_have_made_are_good_and_others_are_not() {
    let file: Value = serde_json::from_str(include_str!("../../../tests/fixtures/rsa-signatures.json")).expect("JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let zeros = encoded(&[&[0_u8, 0][..], decoded(&text(&file["key"]["n"])).as_slice()].concat());
    let message = text(&file["message"]);
    for n in [text(&file["key"]["n"]), zeros] {
        let key = DecodingKey::from_rsa_components(&n, &text(&file["key"]["e"])).expect("a key");
        for (name, signature) in file["signatures"].as_object().expect("signatures") {
            let (algorithm, mut signature): (Algorithm, _) = (name.parse().expect("an algorithm"), decoded(&text(signature)));
            assert!(signature::is_good(algorithm, &key, message.as_bytes(), &signature), "{name}");
            assert!(!signature::is_good(algorithm, &key, b"another message", &signature), "{name}");
            for other in [Algorithm::HS256, Algorithm::ES256, Algorithm::EdDSA, Algorithm::RS256, Algorithm::PS512] {
                assert!(other == algorithm || !signature::is_good(other, &key, message.as_bytes(), &signature), "{name} as {other:?}");
            }
            signature[9] ^= 1;
            assert!(!signature::is_good(algorithm, &key, message.as_bytes(), &signature), "{name}");
        }
    }
    // RFC 8037, A.4.
    let key = DecodingKey::from_ed_components("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo").expect("a key");
    let message = b"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc";
    let signature = decoded("hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg");
    assert!(signature::is_good(Algorithm::EdDSA, &key, message, &signature));
    assert!(!signature::is_good(Algorithm::ES256, &key, message, &signature));
}

fn decoded(text: &str) -> Vec<u8> {
    use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
    BASE64_URL_SAFE_NO_PAD.decode(text).expect("base64")
}

// When keys are fetched.

#[tokio::test]
async fn a_new_key_is_fetched_once_and_at_a_limited_rate() {
    let (providers, issuers, old) = plain();
    let new = Signer::new("k2");
    outcome(&issuers, &old.sign(&claims(json!({})))).await.expect("it is good");
    assert_eq!(providers.asked(KEYS), 1);
    // Whoever makes keys up makes the server ask nobody for a while.
    for n in 0..50 {
        let made_up = Signer::new(&format!("made-up-{n}")).sign(&claims(json!({})));
        assert!(reason(outcome(&issuers, &made_up).await).contains("does not have"));
    }
    assert_eq!(providers.asked(KEYS), 1);
    providers.has(&[&old, &new]);
    let token = new.sign(&claims(json!({})));
    reason(outcome_at(&issuers, &token, NOW.after(29 * SECOND)).await);
    let later = NOW.after(30 * SECOND);
    let all = (0..10).map(|_| outcome_at(&issuers, &token, later));
    for outcome in futures_util::future::join_all(all).await {
        outcome.expect("the new key counts");
    }
    assert_eq!(providers.asked(KEYS), 2, "ten requests fetch once");
    outcome_at(&issuers, &old.sign(&claims(json!({}))), later).await.expect("the old key is still there");
}

#[tokio::test]
async fn old_keys_stay_when_fetching_fails_and_nobody_is_refused_for_that() {
    let (providers, issuers, old) = plain();
    let (known, unknown) = (old.sign(&claims(json!({}))), Signer::new("k2").sign(&claims(json!({}))));
    providers.is_down();
    assert!(is_unavailable(&outcome(&issuers, &known).await), "nothing is known yet");
    assert!(is_unavailable(&outcome(&issuers, &known).await) && providers.asked(METADATA) == 1, "and nobody is asked at once again");
    providers.has(&[&old]);
    let mut now = NOW.after(5 * SECOND);
    outcome_at(&issuers, &known, now).await.expect("it is good");
    providers.is_down();
    now = now.after(30 * SECOND);
    assert!(is_unavailable(&outcome_at(&issuers, &unknown, now).await), "it may be good");
    outcome_at(&issuers, &known, now).await.expect("it is good as before");
    providers.has(&[&old]);
    now = now.after(5 * SECOND);
    assert!(reason(outcome_at(&issuers, &unknown, now).await).contains("does not have"));
}

#[tokio::test]
async fn a_key_that_was_withdrawn_is_refused_when_keys_are_old() {
    let (providers, issuers, old) = plain();
    let new = Signer::new("k2");
    let token = old.sign(&claims(json!({"exp": seconds(NOW) + 10_000})));
    outcome(&issuers, &token).await.expect("it is good");
    providers.has(&[&new]);
    let later = NOW.after(600 * SECOND);
    outcome_at(&issuers, &token, NOW.after(599 * SECOND)).await.expect("keys are fresh for ten minutes");
    outcome_at(&issuers, &token, later).await.expect("whoever comes first does not wait");
    settle().await;
    assert_eq!(providers.asked(KEYS), 2);
    reason(outcome_at(&issuers, &token, later).await);
    outcome_at(&issuers, &new.sign(&claims(json!({"exp": seconds(NOW) + 10_000}))), later).await.expect("the new one counts");
}

#[tokio::test]
async fn a_key_that_was_withdrawn_while_nobody_called_is_refused_at_once() {
    let (providers, issuers, old) = plain();
    let token = old.sign(&claims(json!({"exp": seconds(NOW) + 10_000})));
    outcome(&issuers, &token).await.expect("it is good");
    providers.has(&[&Signer::new("k2")]);
    assert!(reason(outcome_at(&issuers, &token, NOW.after(HOUR)).await).contains("does not have"));
    assert_eq!(providers.asked(KEYS), 2);
}

#[tokio::test]
async fn old_keys_stay_for_a_day_and_no_longer() {
    let (providers, issuers, signer) = plain();
    let token = signer.sign(&claims(json!({"exp": seconds(NOW) + 1_000_000})));
    outcome(&issuers, &token).await.expect("it is good");
    providers.is_down();
    for hours in 1_u32..24 {
        outcome_at(&issuers, &token, NOW.after(hours * HOUR)).await.expect("the keys of before stay");
        assert_eq!(providers.asked(METADATA), 1 + hours as usize, "they are fetched first");
    }
    let (just, over) = (NOW.after(24 * HOUR - SECOND), NOW.after(24 * HOUR));
    outcome_at(&issuers, &token, just).await.expect("the keys of before stay");
    assert!(is_unavailable(&outcome_at(&issuers, &token, over).await), "they may have been withdrawn long ago");
    settle().await;
    providers.has(&[&signer]);
    outcome_at(&issuers, &token, over.after(5 * SECOND)).await.expect("it is good again");
}

#[tokio::test]
async fn whoever_waits_for_keys_waits_for_one_fetch_and_nobody_for_the_next_at_once() {
    let (providers, issuers, _) = plain();
    providers.is_down();
    providers.is_stuck(&[METADATA]);
    providers.inside().takes = 10 * SECOND;
    let unknown = Signer::new("k2").sign(&claims(json!({})));
    let released = async {
        settle().await;
        providers.is_stuck(&[]);
    };
    // The second one comes when it would be time for another fetch, had the first one not taken so long.
    let waiting = async { tokio::join!(outcome(&issuers, &unknown), outcome_at(&issuers, &unknown, NOW.after(6 * SECOND)), released) };
    let (first, second, ()) = waiting.await;
    assert!(is_unavailable(&first) && is_unavailable(&second));
    assert_eq!(providers.asked(METADATA), 1, "both shared what came of it");
    // It asked at two addresses, and ended after twenty seconds: from then on nobody asks for five.
    for (after, asked) in [(24_u32, 1), (25, 2)] {
        assert!(is_unavailable(&outcome_at(&issuers, &unknown, NOW.after(after * SECOND)).await));
        assert_eq!(providers.asked(METADATA), asked, "{after} seconds later");
    }
}

#[tokio::test]
async fn a_fetch_goes_on_when_whoever_waits_for_it_hangs_up() {
    let (providers, issuers, signer) = plain();
    let token = signer.sign(&claims(json!({})));
    for _ in 0..5 {
        // Polled once, then dropped.
        assert!(outcome(&issuers, &token).now_or_never().is_none());
    }
    settle().await;
    assert_eq!(providers.asked(KEYS), 1);
    outcome(&issuers, &token).await.expect("it is good");
    assert_eq!(providers.asked(KEYS), 1);
}

#[tokio::test]
async fn keys_of_other_kinds_are_passed_over() {
    let (providers, issuers, signer) = plain();
    let mut for_secrets = Signer::new("k2").jwk();
    for_secrets["use"] = "enc".into();
    let odd = [
        for_secrets,
        json!({"kty": "oct", "kid": "k1", "k": encoded(b"secret")}),
        json!({"kty": "EC", "crv": "secp256k1", "kid": "k1", "x": "AA", "y": "AA"}),
        json!({"kty": "AKP", "kid": "k1"}),
        json!({"kty": "RSA", "kid": "k1", "n": "!", "e": "AQAB"}),
        json!("no key"),
        signer.jwk(),
    ];
    providers.says(KEYS, 200, json!({"keys": odd}));
    outcome(&issuers, &signer.sign(&claims(json!({})))).await.expect("one of them is good");
    providers.says(KEYS, 200, json!({"keys": odd[..6]}));
    let others = taking(vec![Issuer::new(ISSUER, [AUDIENCE])], &providers);
    assert!(is_unavailable(&outcome(&others, &signer.sign(&claims(json!({})))).await), "a provider without keys is broken");
}

#[tokio::test]
async fn keys_are_where_the_issuer_or_the_configuration_says() {
    let (providers, _, signer) = plain();
    let token = signer.sign(&claims(json!({})));
    let fresh = |jwks: Option<&str>| {
        let issuer = Issuer { jwks: jwks.map(ToOwned::to_owned), ..Issuer::new(ISSUER, [AUDIENCE]) };
        taking(vec![issuer], &providers)
    };
    for (status, metadata) in [
        (200, json!({"issuer": "https://evil.example", "jwks_uri": KEYS})),
        (200, json!({"issuer": ISSUER, "jwks_uri": "http://idp.example/keys"})),
        (200, json!({"issuer": ISSUER})),
        (302, json!({"issuer": ISSUER, "jwks_uri": KEYS})),
    ] {
        providers.says(METADATA, status, metadata.clone());
        assert!(is_unavailable(&outcome(&fresh(None), &token).await), "{status} {metadata}");
    }
    assert_eq!(providers.asked(KEYS), 0);
    outcome(&fresh(Some(KEYS)), &token).await.expect("the configuration says where");
    providers.says("https://idp.example/.well-known/oauth-authorization-server", 200, json!({"issuer": ISSUER, "jwks_uri": KEYS}));
    providers.says(METADATA, 404, Value::Null);
    outcome(&fresh(None), &token).await.expect("it is an OAuth server and no OpenID provider");
}

// What an issuer says of a token.

fn asking(url: &str) -> Introspection {
    Introspection { url: url.to_owned(), client_id: "me & co".to_owned(), client_secret: "s3cret".to_owned() }
}

fn asked_about() -> (Arc<Providers>, Issuers) {
    let providers = Arc::<Providers>::default();
    let issuer = Issuer { introspection: Some(asking(ASK)), ..Issuer::new(ISSUER, [AUDIENCE]) };
    let issuers = taking(vec![issuer], &providers);
    (providers, issuers)
}

#[tokio::test]
async fn the_issuer_of_an_opaque_token_is_asked_and_its_word_holds_for_a_moment() {
    let (providers, issuers) = asked_about();
    providers.says(ASK, 200, claims(json!({"active": true, "iss": null})));
    let identity = outcome(&issuers, "opaque+token").await.expect("it is good");
    assert_eq!((identity.caller.as_str(), identity.expires), ("https://idp.example#ada", Some(NOW.after(300 * SECOND + LEEWAY))));
    let (body, authorization) = providers.inside().posted[0].clone();
    assert_eq!(body, "token=opaque%2Btoken&token_type_hint=access_token");
    assert_eq!(authorization, "Basic bWUlMjAlMjYlMjBjbzpzM2NyZXQ=", "me%20%26%20co:s3cret");
    providers.says(ASK, 200, json!({"active": false}));
    outcome_at(&issuers, "opaque+token", NOW.after(59 * SECOND)).await.expect("it was good a moment ago");
    assert_eq!(providers.asked(ASK), 1);
    assert!(reason(outcome_at(&issuers, "opaque+token", NOW.after(60 * SECOND)).await).contains("unknown to its issuer"));
    reason(outcome_at(&issuers, "opaque+token", NOW.after(69 * SECOND)).await);
    assert_eq!(providers.asked(ASK), 2);
    assert!(!format!("{:?}", asking(ASK)).contains("s3cret"));
}

#[tokio::test]
async fn what_an_issuer_says_is_checked_as_what_a_token_says() {
    let (providers, issuers) = asked_about();
    for (n, (said, why)) in [
        (json!({"aud": "https://other.example"}), "audience"),
        (json!({"aud": null}), "audience"),
        (json!({"iss": "https://evil.example"}), "another issuer"),
        (json!({"exp": seconds(NOW) - 61}), "expired"),
        (json!({"sub": null}), "who calls"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut said = claims(said);
        said["active"] = true.into();
        providers.says(ASK, 200, said.clone());
        assert!(reason(outcome(&issuers, &format!("token-{n}")).await).contains(why), "{said}");
    }
    providers.says(ASK, 200, claims(json!({"active": true, "exp": null})));
    // It is asked about again in time: until then its streams stay open.
    assert_eq!(outcome(&issuers, "endless").await.expect("it is good").expires, Some(NOW.after(HOUR)));
    let later = NOW.after(HOUR);
    assert_eq!(outcome_at(&issuers, "endless", later).await.expect("it is good").expires, Some(later.after(HOUR)));
    providers.says(ASK, 200, json!({"active": "true"}));
    reason(outcome(&issuers, "odd").await);
}

#[tokio::test]
async fn an_issuer_that_does_not_answer_is_no_refusal() {
    let (providers, issuers) = asked_about();
    assert!(is_unavailable(&outcome(&issuers, "token").await));
    for status in [401, 500] {
        providers.says(ASK, status, json!({"active": false}));
        assert!(is_unavailable(&outcome(&issuers, "token").await), "{status}");
    }
    providers.says(ASK, 200, json!("hello"));
    assert!(is_unavailable(&outcome(&issuers, "token").await));
    providers.says(ASK, 200, claims(json!({"active": true})));
    outcome(&issuers, "token").await.expect("it answers again, and a failure is not remembered");
}

#[tokio::test]
async fn no_token_is_shown_to_anybody_but_its_issuer() {
    let (providers, signer) = (Arc::<Providers>::default(), Signer::new("k1"));
    providers.has(&[&signer]);
    let other_ask = "https://other.example/introspect";
    let other = Issuer { introspection: Some(asking(other_ask)), ..Issuer::new("https://other.example", [AUDIENCE]) };
    let issuers = taking(vec![Issuer::new(ISSUER, [AUDIENCE]), other], &providers);
    outcome(&issuers, &signer.sign(&claims(json!({})))).await.expect("it is good");
    reason(outcome(&issuers, &signer.sign(&claims(json!({"iss": "https://third.example"})))).await);
    assert_eq!(providers.asked(other_ask), 0, "tokens that name somebody else");
    // A token that names the other one: it is asked, though it could be read.
    let theirs = signer.sign(&claims(json!({"iss": "https://other.example"})));
    providers.says(other_ask, 200, claims(json!({"iss": "https://other.example", "active": true})));
    assert_eq!(outcome(&issuers, &theirs).await.expect("it is good").caller.as_str(), "https://other.example#ada");
    assert_eq!(providers.asked(other_ask), 1);
}

#[tokio::test]
async fn a_token_that_names_nobody_is_for_whichever_issuer_knows_it() {
    let providers = Arc::<Providers>::default();
    let (first, second) = ("https://first.example/introspect", "https://second.example/introspect");
    let issuer = |ask: &str, url: &str| Issuer { introspection: Some(asking(ask)), ..Issuer::new(url, [AUDIENCE]) };
    let issuers = taking(vec![issuer(first, "https://first.example"), issuer(second, "https://second.example")], &providers);
    providers.says(first, 200, json!({"active": false}));
    providers.says(second, 200, claims(json!({"iss": null, "active": true})));
    assert_eq!(outcome(&issuers, "token").await.expect("one knows it").caller.as_str(), "https://second.example#ada");
    providers.says(second, 500, Value::Null);
    assert!(is_unavailable(&outcome(&issuers, "another").await), "who does not answer may know it");
    providers.says(second, 200, json!({"active": false}));
    reason(outcome(&issuers, "another").await);
}

#[tokio::test]
async fn issuers_are_asked_about_a_token_at_the_same_time() {
    let providers = Arc::<Providers>::default();
    let (first, second) = ("https://first.example/introspect", "https://second.example/introspect");
    let issuer = |ask: &str, url: &str| Issuer { introspection: Some(asking(ask)), ..Issuer::new(url, [AUDIENCE]) };
    let issuers = taking(vec![issuer(first, "https://first.example"), issuer(second, "https://second.example")], &providers);
    providers.is_stuck(&[first]);
    providers.says(second, 200, claims(json!({"iss": null, "active": true})));
    let identity = tokio::select! {
        answer = outcome(&issuers, "token") => answer.expect("one knows it"),
        () = settle() => panic!("the other one waits for the first"),
    };
    assert_eq!(identity.caller.as_str(), "https://second.example#ada");
    providers.is_stuck(&[]);
}

#[tokio::test]
async fn tokens_that_nobody_knows_are_in_nobodys_way() {
    let (providers, issuers) = asked_about();
    providers.says(ASK, 200, claims(json!({"active": true})));
    outcome(&issuers, "good").await.expect("it is good");
    providers.says(ASK, 200, json!({"active": false}));
    for n in 0..20_000 {
        reason(outcome(&issuers, &format!("junk-{n}")).await);
    }
    let asked = providers.asked(ASK);
    outcome(&issuers, "good").await.expect("it is remembered, however many others there were");
    assert_eq!(providers.asked(ASK), asked);
    // As many unknown tokens as may be asked about at one time.
    providers.is_stuck(&[ASK]);
    let junk: Vec<String> = (0..32).map(|n| format!("more-junk-{n}")).collect();
    let mut waiting: Vec<_> = junk.iter().map(|token| Box::pin(outcome(&issuers, token))).collect();
    for waits in &mut waiting {
        assert!(waits.now_or_never().is_none());
    }
    let later = NOW.after(60 * SECOND);
    assert!(is_unavailable(&outcome_at(&issuers, "unknown", later).await), "there is a limit");
    providers.says(ASK, 200, claims(json!({"active": true})));
    let mut again = Box::pin(outcome_at(&issuers, "good", later));
    assert!(again.as_mut().now_or_never().is_none(), "the issuer is asked");
    providers.is_stuck(&[]);
    again.await.expect("who was good before need not wait for them");
}

#[tokio::test]
async fn nobody_is_asked_about_what_cannot_be_a_token() {
    let (providers, issuers) = asked_about();
    providers.says(ASK, 200, claims(json!({"active": true})));
    for odd in ["a\"b", "a,b", "ä", "=", "a=b"] {
        reason(outcome(&issuers, odd).await);
    }
    assert_eq!(providers.asked(ASK), 0);
    outcome(&issuers, "a-._~+/9==").await.expect("it has the characters of one");
}

// How issuers are described.

#[test]
fn an_issuer_that_cannot_be_trusted_or_used_is_refused_at_once() {
    let good = || Issuer::new(ISSUER, [AUDIENCE]);
    let refused = |issuer: Issuer| {
        Issuers::new(vec![good_elsewhere(), issuer], LEEWAY).map(drop).map_err(|InvalidIssuer { index, key, .. }| (index, key))
    };
    let one = |text: &str| vec![text.to_owned()];
    assert_eq!(refused(good()), Ok(()));
    for (issuer, key) in [
        (Issuer::new("http://idp.example", [AUDIENCE]), "url"),
        (Issuer::new("idp.example", [AUDIENCE]), "url"),
        (Issuer::new("https://idp.example?tenant=1", [AUDIENCE]), "url"),
        (Issuer::new(&format!("https://idp.example/{}", "x".repeat(300)), [AUDIENCE]), "url"),
        (good_elsewhere(), "url"),
        (Issuer::new(ISSUER, [""; 0]), "audiences"),
        (Issuer { algorithms: Vec::new(), ..good() }, "algorithms"),
        (Issuer { algorithms: one("HS256"), ..good() }, "algorithms"),
        (Issuer { algorithms: one("none"), ..good() }, "algorithms"),
        (Issuer { jwks: Some("http://idp.example/keys".to_owned()), ..good() }, "jwks"),
        (Issuer { jwks: Some(KEYS.to_owned()), introspection: Some(asking(ASK)), ..good() }, "jwks"),
        (Issuer { introspection: Some(asking("http://idp.example/ask")), ..good() }, "introspection"),
        (Issuer { caller_claim: String::new(), ..good() }, "caller_claim"),
    ] {
        assert_eq!(refused(issuer.clone()), Err((1, key)), "{issuer:?}");
    }
    for here in ["http://localhost:3000", "http://127.0.0.1:3000/a", "http://[::1]:3000"] {
        assert_eq!(refused(Issuer::new(here, [AUDIENCE])), Ok(()), "{here}");
    }
}

fn good_elsewhere() -> Issuer {
    Issuer::new("https://elsewhere.example", [AUDIENCE])
}
