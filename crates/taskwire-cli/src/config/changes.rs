//! Compares two versions of the file: which changes need a restart of the server.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use super::Config;

/// Keys whose change takes effect as soon as a running server reloads the file.
const RELOADABLE_KEYS: [&str; 2] = ["demo", "tool"];

impl Config {
    /// The changed keys that a running server applies only after a restart. Keys in `overridden_keys` do not count: the command line
    /// decides them.
    pub(crate) fn restart_keys(&self, new_config: &Self, overridden_keys: &[&str]) -> Vec<String> {
        let (old, new) = (flat(&self.source.text), flat(&new_config.source.text));
        let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        // Another certificate is one thing, to begin or to end with TLS is another.
        let has_tls = self.tls.is_some() && new_config.tls.is_some();
        let is_live = |key: &str| RELOADABLE_KEYS.contains(&key) || overridden_keys.contains(&key) || (has_tls && key.starts_with("tls."));
        let differs = |key: &str| {
            let (old, new) = (old.get(key), new.get(key));
            // To write down the default changes nothing.
            old != new && effect(key, old).is_none_or(|old| effect(key, new) != Some(old))
        };
        keys.into_iter().filter(|key| !is_live(key) && differs(key)).cloned().collect()
    }
}

impl Config {
    /// The keys that differ from their defaults, except tools, `listen` and `data`, each with its effect.
    pub(crate) fn effects(&self) -> BTreeMap<String, String> {
        let usual = |key: &str| effect(key, None);
        let keys = flat(&self.source.text).into_iter().filter(|(key, _)| !["demo", "tool", "listen", "data"].contains(&key.as_str()));
        keys.filter_map(|(key, value)| {
            let does = effect(&key, Some(&value));
            let differs = does.is_none() || does != usual(&key);
            differs.then(|| (key, does.unwrap_or_else(|| value.to_string())))
        })
        .collect()
    }
}

/// All keys of a file except those of tools, with their values.
fn flat(text: &str) -> BTreeMap<String, toml::Value> {
    fn add(prefix: &str, table: toml::Table, keys: &mut BTreeMap<String, toml::Value>) {
        for (key, value) in table {
            match value {
                toml::Value::Table(inner) => add(&format!("{prefix}{key}."), inner, keys),
                value => drop(keys.insert(format!("{prefix}{key}"), value)),
            }
        }
    }
    let mut keys = BTreeMap::new();
    add("", text.parse().unwrap_or_default(), &mut keys);
    keys
}

/// The effect of a file with this key alone; `None` if that cannot be told.
fn effect(key: &str, value: Option<&toml::Value>) -> Option<String> {
    // Values of these may be secrets, or mean something only together.
    if key.starts_with("auth.") || key.starts_with("traces.") {
        return None;
    }
    let text = value.map(|value| format!("{key} = {value}")).unwrap_or_default();
    let config = Config::parse(Path::new(""), text).ok()?;
    Some(format!(
        "{} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        config.listen,
        config.log_format,
        config.metrics.listen,
        config.audit.file,
        config.data,
        config.store,
        config.node,
        config.postgres,
        config.to_server_config().ok()?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_a_restart_is_told_by_its_keys() {
        let parsed = |text: &str| Config::parse(Path::new("taskwire.toml"), text.to_owned());
        let keys = |old: &str, new: &str| parsed(old).expect("valid").restart_keys(&parsed(new).expect("valid"), &["data"]);
        let old = "listen = \"127.0.0.1:1\"\ndata = \"a\"\n[http]\nconnections = 5\n[auth]\ntokens = [{ token = \"a\", caller = \"b\" }]\n";
        assert_eq!(keys(old, old), Vec::<String>::new());
        assert_eq!(keys(old, ""), ["auth.tokens", "http.connections", "listen"], "what was taken away counts");
        assert_eq!(keys("", old), ["auth.tokens", "http.connections", "listen"]);
        assert_eq!(keys(old, &old.replace("\"a\", caller", "\"c\", caller")), ["auth.tokens"]);
        let traces = "[traces]\nendpoint = \"http://a\"\nsample = 0.5\nheaders = { A = \"b\" }\n";
        assert_eq!(keys(traces, &traces.replace("0.5", "0.1").replace("\"b\"", "\"c\"")), ["traces.headers.A", "traces.sample"]);
        assert_eq!(keys("", "data = \"b\"\ndemo = true\ninline_bytes = 32768\n[[tool]]\nname = \"a\"\ncommand = [\"true\"]"), [""; 0]);
        assert_eq!(keys("", "hold = \"45s\"\npage_len = 250\nlisten = \"127.0.0.1:8787\""), [""; 0], "these are the defaults");
        assert_eq!(keys("hold = \"60s\"", "hold = \"1m\""), [""; 0], "the same in other words");
        let tls = "[tls]\ncertificate = \"a\"\nkey = \"b\"";
        assert_eq!(keys("", tls), ["tls.certificate", "tls.key"]);
        assert_eq!(keys(tls, ""), ["tls.certificate", "tls.key"]);
        assert_eq!(keys(tls, "[tls]\ncertificate = \"c\"\nkey = \"b\"\nclient_ca = \"d\""), [""; 0], "a reload takes them over");
        assert_eq!(keys("", "instructions = \"Be kind\"\nhold = \"1s\"\ninline_bytes = 999"), ["hold", "inline_bytes", "instructions"]);
    }
}
