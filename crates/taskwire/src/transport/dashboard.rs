//! The dashboard: static files for browsers, which are part of the program. What they show, they ask for like any other client.

use std::sync::LazyLock;

use bytes::Bytes;
use hyper::{
    HeaderMap, Response, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH, REFERRER_POLICY,
        X_CONTENT_TYPE_OPTIONS,
    },
};
use sha2::{Digest, Sha256};

use super::reply_body::ReplyBody;

/// Scripts and styles of this server alone, requests to it alone, and no page may frame this one.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

struct File {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
    etag: HeaderValue,
}

macro_rules! files {
    ($($path:literal is $kind:ident in $name:literal),* $(,)?) => {
        [$(File::new($path, $kind, include_str!(concat!("../dashboard/", $name)))),*]
    };
}

static FILES: LazyLock<[File; 17]> = LazyLock::new(|| {
    files![
        "/" is HTML in "index.html",
        "/dashboard/app.js" is SCRIPT in "app.js",
        "/dashboard/server.js" is SCRIPT in "server.js",
        "/dashboard/dom.js" is SCRIPT in "dom.js",
        "/dashboard/tasks.js" is SCRIPT in "tasks.js",
        "/dashboard/task.js" is SCRIPT in "task.js",
        "/dashboard/terminal.js" is SCRIPT in "terminal.js",
        "/dashboard/ansi.js" is SCRIPT in "ansi.js",
        "/dashboard/form.js" is SCRIPT in "form.js",
        "/dashboard/timeline.js" is SCRIPT in "timeline.js",
        "/dashboard/tools.js" is SCRIPT in "tools.js",
        "/dashboard/nodes.js" is SCRIPT in "nodes.js",
        "/dashboard/page.js" is SCRIPT in "page.js",
        "/dashboard/question.js" is SCRIPT in "question.js",
        "/dashboard/result.js" is SCRIPT in "result.js",
        "/dashboard/json.js" is SCRIPT in "json.js",
        "/dashboard/style.css" is STYLE in "style.css",
    ]
});

impl File {
    fn new(path: &'static str, kind: &'static str, text: &'static str) -> Self {
        let hash: String = Sha256::digest(text.as_bytes()).iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        let etag = HeaderValue::from_str(&format!("\"{hash}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"0\""));
        Self { path, kind, text, etag }
    }

    /// Whether a browser has it already.
    fn is_known(&self, headers: &HeaderMap) -> bool {
        let known = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        known.flat_map(|value| value.split(',')).any(|tag| {
            let tag = tag.trim();
            tag == "*" || tag.trim_start_matches("W/").as_bytes() == self.etag.as_bytes()
        })
    }
}

fn find(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}

pub(super) fn has(path: &str) -> bool {
    find(path).is_some()
}

/// A file of the dashboard. Browsers ask each time whether there is another, so that a page is never of two programs.
pub(super) fn respond(path: &str, headers: &HeaderMap) -> Response<ReplyBody> {
    let Some(file) = find(path) else { return super::http::plain(StatusCode::NOT_FOUND, "nothing here\n") };
    let is_known = file.is_known(headers);
    let body = (!is_known).then(|| Bytes::from_static(file.text.as_bytes()));
    let mut response = Response::new(ReplyBody::Whole(body, None));
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let fixed: [(HeaderName, &'static str); 5] = [
        (CONTENT_TYPE, file.kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-cache"),
    ];
    response.headers_mut().insert(ETAG, file.etag.clone());
    for (name, value) in fixed {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
