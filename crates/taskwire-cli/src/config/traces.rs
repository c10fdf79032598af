//! `[traces]`: where spans are sent.

use std::collections::BTreeMap;

use serde::Deserialize;
use taskwire::server::Traces;

use super::{
    auth::{SecretSources, variable},
    set,
    store::Secret,
    time::Span,
};

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TracesTable {
    /// The collector of OpenTelemetry that spans are sent to, such as `"http://127.0.0.1:4318"` (OTLP over HTTP, as JSON). It has no user
    /// and no password in it: there are `headers`. Default: none, nothing is traced then.
    endpoint: Option<String>,
    /// Which share of requests is traced, where their senders have not decided that. Default: `1.0`.
    sample: Option<f64>,
    /// Headers that are sent with spans. A value `"env:NAME"` is read from that environment variable, `"file:PATH"` from that file.
    /// Default: `{}`.
    headers: BTreeMap<String, Secret>,
    /// What the server is called in traces. Default: `"taskwire"`.
    service_name: Option<String>,
    /// How long spans are gathered before they are sent together. Default: `"5s"`.
    interval: Option<Span>,
}

impl TracesTable {
    /// The library's settings; none if nothing is traced. The error has the key and the reason.
    pub(super) fn resolve(&self, secrets: &SecretSources<'_>) -> Result<Option<Traces>, (&'static str, String)> {
        let Some(endpoint) = &self.endpoint else { return Ok(None) };
        let mut traces = Traces::new(endpoint);
        set(&mut traces.sample, self.sample);
        set(&mut traces.service_name, self.service_name.clone());
        set(&mut traces.interval, self.interval.map(|span| span.0));
        for (name, Secret(value)) in &self.headers {
            let value = secrets.read(value).map_err(|why| ("headers", format!("has no value for `{name}`: {why}")))?;
            traces.headers.push((name.clone(), value));
        }
        traces.check()?;
        Ok(Some(traces))
    }

    /// The environment variables that secrets come from.
    pub(super) fn variables(&self) -> impl Iterator<Item = String> {
        self.headers.values().filter_map(|Secret(value)| variable(value)).map(ToOwned::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use std::{io, path::Path};

    use super::*;

    fn resolved(text: &str) -> Result<Option<Traces>, (&'static str, String)> {
        let variable = |name: &str| (name == "COLLECTOR_KEY").then(|| "abc".to_owned());
        let file = |_: &Path| -> io::Result<String> { Err(io::ErrorKind::NotFound.into()) };
        let table: TracesTable = toml::from_str(text).expect("it can be read");
        table.resolve(&SecretSources { variable: &variable, file: &file })
    }

    #[test]
    fn headers_for_the_collector_come_from_variables_and_are_not_shown() {
        let text = "endpoint = \"https://collector/\"\nheaders = { X-Key = \"env:COLLECTOR_KEY\" }\nsample = 1";
        let traces = resolved(text).expect("usable").expect("traced");
        assert_eq!((traces.headers.as_slice(), traces.sample), (&[("X-Key".to_owned(), "abc".to_owned())][..], 1.0));
        assert!(!format!("{traces:?}").contains("abc"), "{traces:?}");
        let table: TracesTable = toml::from_str(text).expect("it can be read");
        assert_eq!(table.variables().collect::<Vec<_>>(), ["COLLECTOR_KEY"]);
        assert!(resolved("sample = 0.5").expect("usable").is_none(), "without an endpoint nothing is traced");
    }

    #[test]
    fn what_cannot_be_used_is_named_by_its_key() {
        for (text, key) in [
            ("endpoint = \"collector:4318\"", "endpoint"),
            ("endpoint = \"ftp://collector\"", "endpoint"),
            ("endpoint = \"http://ada:secret@collector\"", "endpoint"),
            ("endpoint = \"http://collector\"\nsample = 1.5", "sample"),
            ("endpoint = \"http://collector\"\nsample = nan", "sample"),
            ("endpoint = \"http://collector\"\nheaders = { \"a b\" = \"c\" }", "headers"),
            ("endpoint = \"http://collector\"\nheaders = { A = \"env:NOT_SET\" }", "headers"),
        ] {
            let (found, why) = resolved(text).expect_err(text);
            assert_eq!(found, key, "{text}: {why}");
        }
    }
}
