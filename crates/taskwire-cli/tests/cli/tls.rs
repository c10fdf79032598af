//! A server that speaks TLS by itself: with a client that trusts it, with another certificate, and with clients that show theirs.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use taskwire::clock::{Clock, SystemClock};

use self::authority::{Authority, Signed};
use crate::{
    kit::refusal,
    user::{CommandResult, RunningCommand, User},
};

#[path = "../../../taskwire/tests/it/tls/authority.rs"]
mod authority;

/// A server's file with TLS, and a tool that says hello.
const CONFIG: &str = "log_format = \"json\"\n\n[tls]\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n";
const TOOL: &str = "\n[[tool]]\nname = \"hello\"\ncommand = [\"echo\", \"hello\"]\n";

/// Puts a certificate and its key where the server's file says.
fn install(user: &User, signed: &Signed) {
    user.write("cert.pem", &signed.certificate);
    let key = user.write("key.pem", &signed.key);
    fs::set_permissions(key, fs::Permissions::from_mode(0o600)).expect("it is ours");
}

/// Starts the server of this user with this file; its address.
fn start(user: &User, config: &str) -> (RunningCommand, String) {
    let file = user.write("taskwire.toml", config);
    let mut running = user.start(&["serve", &file, "--listen", "127.0.0.1:0", "--data", &user.path("data")]);
    let url = running.out.line_with("  endpoint  ");
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    (running, url)
}

/// Calls the tool as somebody who trusts this authority and no other.
fn call(user: &User, url: &str, authority: &Authority) -> CommandResult {
    let ca = user.write("trusted.pem", &authority.certificate);
    RunningCommand::start(user.command(&["call", url, "hello"]).env("SSL_CERT_FILE", ca)).end()
}

fn reload(user: &User) -> CommandResult {
    user.run(&["reload", &user.path("taskwire.toml"), "--data", &user.path("data")])
}

#[test]
fn a_client_calls_by_tls_whom_it_trusts() {
    let (user, authority) = (User::new(), Authority::new("ours"));
    install(&user, &authority.server());
    let (_running, url) = start(&user, &format!("{CONFIG}{TOOL}"));
    let called = call(&user, &url, &authority);
    assert_eq!((called.code, called.out.as_str()), (Some(0), "hello\n"), "{called:?}");
    let refused = call(&user, &url, &Authority::new("theirs"));
    assert_ne!(refused.code, Some(0), "{refused:?}");
    user.write("config-ca.pem", &authority.certificate);
    user.configure(&format!("[server.ours]\nurl = \"{url}\"\nca = \"../../config-ca.pem\"\n"));
    let called = user.run(&["call", "ours", "hello"]);
    assert_eq!((called.code, called.out.as_str()), (Some(0), "hello\n"), "{called:?}");
    let plain = user.run(&["call", &url.replace("https:", "http:"), "hello"]);
    assert!(plain.code != Some(0) && plain.err.contains("use https://"), "{plain:?}");
}

#[test]
fn a_reload_reads_the_certificate_again_and_a_bad_one_changes_nothing() {
    let (user, first, second) = (User::new(), Authority::new("first"), Authority::new("second"));
    install(&user, &first.server());
    let (mut running, url) = start(&user, &format!("{CONFIG}{TOOL}"));
    assert_eq!(call(&user, &url, &first).code, Some(0));
    install(&user, &second.server());
    let reloaded = reload(&user);
    assert_eq!(reloaded.code, Some(0), "{reloaded:?}");
    assert_eq!(reloaded.out, "unchanged: 1\ncertificate: read again, valid until 4096-01-01T00:00:00.000Z\n");
    let called = call(&user, &url, &second);
    assert_eq!(called.code, Some(0), "{called:?}");
    // Half of a renewal: the key is still the old one.
    user.write("cert.pem", &first.server().certificate);
    let refused = reload(&user);
    assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""), "{refused:?}");
    assert!(refused.err.contains("line 5") && refused.err.contains("key.pem cannot be used: it is not the key"), "{refused:?}");
    user.write("cert.pem", "");
    running.signal("HUP");
    running.err.until("there is no certificate in it");
    let called = call(&user, &url, &second);
    assert_eq!(called.code, Some(0), "{called:?}");
}

#[test]
fn a_certificate_that_expires_soon_is_warned_about_and_so_is_a_key_that_everybody_reads() {
    let (user, authority) = (User::new(), Authority::new("ours"));
    let now = Duration::from_millis(SystemClock.now().as_millis().unsigned_abs());
    let day = Duration::from_secs(24 * 3600);
    let until = |at: Duration| authority.signs("server", |params| params.not_after = rcgen::date_time_ymd(1970, 1, 1) + at);
    install(&user, &until(now + 13 * day));
    let config = format!("{CONFIG}{TOOL}").replace("json", "text");
    let (mut running, _) = start(&user, &config);
    running.err.until("cert.pem expires at ");
    install(&user, &until(now - day));
    fs::set_permissions(user.path("key.pem"), fs::Permissions::from_mode(0o644)).expect("it is ours");
    let reloaded = reload(&user);
    assert_eq!(reloaded.code, Some(0), "{reloaded:?}");
    assert!(reloaded.err.contains("cert.pem expired at ") && reloaded.err.contains("`chmod 600 "), "{reloaded:?}");
    install(&user, &until(now + 15 * day));
    let reloaded = reload(&user);
    assert!(reloaded.code == Some(0) && !reloaded.err.contains("expire") && !reloaded.err.contains("chmod"), "{reloaded:?}");
}

#[test]
fn a_client_that_shows_a_certificate_is_known_by_it() {
    let (user, authority) = (User::new(), Authority::new("ours"));
    install(&user, &authority.server());
    let ca = user.write("ca.pem", &authority.certificate);
    let config = format!("{CONFIG}client_ca = \"ca.pem\"\n\n[auth]\nclient_certificates = true\n{TOOL}");
    let (mut running, url) = start(&user, &config);
    let ada = authority.signs("ada", |_| {});
    let (certificate, key) = (user.write("ada.pem", &ada.certificate), user.write("ada.key", &ada.key));
    user.configure(&format!("[server.ours]\nurl = \"{url}\"\nca = \"{ca}\"\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n"));
    let called = user.run(&["call", "ours", "hello"]);
    assert_eq!((called.code, called.out.as_str()), (Some(0), "hello\n"), "{called:?}");
    running.err.until("\"caller\":\"cert:cn:ada\"");
    user.configure(&format!("[server.ours]\nurl = \"{url}\"\nca = \"{ca}\"\n"));
    let refused = user.run(&["call", "ours", "hello"]);
    assert!(refused.code != Some(0) && refused.err.contains("client certificate"), "{refused:?}");
    user.configure(&format!("[server.ours]\nurl = \"{url}\"\ncertificate = \"{certificate}\"\n"));
    let half = user.run(&["call", "ours", "hello"]);
    assert!(half.code == Some(2) && half.err.contains("both a `certificate` and its `key`"), "{half:?}");
}

#[test]
fn what_tls_cannot_be_spoken_with_is_refused_where_it_stands() {
    let (user, authority) = (User::new(), Authority::new("ours"));
    install(&user, &authority.server());
    let refused = |config: String| {
        let file = user.write("taskwire.toml", &config);
        refusal(2, &["serve", &file, "--listen", "127.0.0.1:0", "--data", &user.path("data")])
    };
    for (config, place, why) in [
        (CONFIG.replace("key.pem", "none.pem"), "line 5, column 7", "none.pem cannot be read"),
        (CONFIG.replace("key.pem", "cert.pem"), "line 5, column 7", "no private key"),
        (CONFIG.replace("cert.pem", "key.pem"), "line 4, column 15", "no certificate"),
        (format!("{CONFIG}client_ca = \"key.pem\"\n"), "line 6, column 13", "no certificate"),
        (format!("{CONFIG}require_client = true\n"), "line 6, column 18", "needs `tls.client_ca`"),
        (format!("{CONFIG}\n[auth]\nclient_certificates = true\n"), "line 8, column 23", "needs `tls.client_ca`"),
    ] {
        let words = refused(config);
        assert!(words.contains(place) && words.contains(why), "{place}, {why}: {words}");
    }
    let file = user.write("taskwire.toml", CONFIG);
    let open = refusal(2, &["serve", &file, "--listen", "0.0.0.0:0", "--data", &user.path("data")]);
    assert!(open.contains("can be reached from other machines"), "{open}");
}
