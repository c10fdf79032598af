//! `requestState`, which a client sends back when it calls again. It is signed, bound to its caller and its call, and expires.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use taskwire_core::{CallerId, Payload, TaskId, Timestamp};

use crate::protocol::Fault;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RequestState {
    /// The constraints on the answers to a round of questions, and the handler's own state.
    Round { questions: BTreeMap<String, Payload>, state: Option<Value> },
    /// The task that the answers are for.
    Task(TaskId),
}

/// The call that a state belongs to: only the same caller with the same call can use it.
#[derive(Debug, Clone)]
pub(super) struct Binding<'a> {
    pub(super) secret: &'a [u8; 32],
    pub(super) caller: &'a CallerId,
    pub(super) method: &'a str,
    pub(super) name: &'a str,
    pub(super) arguments: &'a Value,
}

#[derive(Serialize, Deserialize)]
struct SignedState {
    until: Timestamp,
    call: String,
    carried: RequestState,
}

impl Binding<'_> {
    fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for part in [self.caller.as_str(), self.method, self.name, &self.arguments.to_string()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        URL_SAFE_NO_PAD.encode(hash.finalize())
    }

    fn mac(&self, body: &str) -> Hmac<Sha256> {
        Hmac::new_from_slice(self.secret).expect("any key length will do").chain_update(b"requestState").chain_update(body)
    }

    pub(super) fn seal(&self, carried: RequestState, until: Timestamp) -> String {
        let sealed = SignedState { until, call: self.digest(), carried };
        let body = URL_SAFE_NO_PAD.encode(super::json::text(&sealed));
        let tag = URL_SAFE_NO_PAD.encode(self.mac(&body).finalize().into_bytes());
        format!("{body}.{tag}")
    }

    /// Opens a state that was sealed for this call.
    pub(super) fn open(&self, text: &str, now: Timestamp) -> Result<RequestState, Fault> {
        let refuse = |why: &str| Fault::params(format!("`requestState` {why}: make the call again without it"));
        // Nobody learns of a state that was issued to another caller that it was issued at all.
        let sealed = self.unsealed(text).filter(|sealed| sealed.call == self.digest());
        let sealed = sealed.ok_or_else(|| refuse("was not issued for this call, or was changed on the way"))?;
        if sealed.until < now {
            return Err(refuse("has expired"));
        }
        Ok(sealed.carried)
    }

    /// A state that was sealed here, for whatever call.
    fn unsealed(&self, text: &str) -> Option<SignedState> {
        let (body, tag) = text.split_once('.')?;
        self.mac(body).verify_slice(&URL_SAFE_NO_PAD.decode(tag).ok()?).ok()?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_same_call_by_the_same_caller_in_time_opens_it() {
        let me = CallerId::new("me");
        let other = CallerId::new("other");
        let call = Binding { secret: &[1; 32], caller: &me, method: "tools/call", name: "t", arguments: &json!({"a": 1, "b": 2}) };
        let at = Timestamp::from_millis;
        let questions = BTreeMap::from([("k".to_owned(), json!({"method": "roots/list"}).into())]);
        let round = RequestState::Round { questions, state: Some(json!({"step": 1})) };
        let text = call.seal(round.clone(), at(10));
        assert_eq!(call.open(&text, at(10)), Ok(round));
        assert!(call.open(&text, at(11)).is_err(), "expired");
        for changed in [format!("{text}-TAMPERED"), format!("x{text}"), text.replace('.', ""), text.to_uppercase(), String::new()] {
            assert!(call.open(&changed, at(1)).is_err(), "{changed}");
        }
        for wrong in [
            Binding { secret: &[2; 32], ..call.clone() },
            Binding { caller: &other, ..call.clone() },
            Binding { method: "prompts/get", ..call.clone() },
            Binding { name: "u", ..call.clone() },
            Binding { arguments: &json!({"a": 1}), ..call.clone() },
        ] {
            assert!(wrong.open(&text, at(1)).is_err(), "{wrong:?}");
        }
    }
}
