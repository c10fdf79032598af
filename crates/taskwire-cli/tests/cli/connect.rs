//! `taskwire connect`: what is shown, what is written into whose file, and what is left alone.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use serde_json::{Value, json};

use crate::user::{CommandResult, RunningCommand, User};

const PROGRAM: &str = env!("CARGO_BIN_EXE_taskwire");
const URL: &str = "http://127.0.0.1:8787/mcp";
const TOOLS: &str = "[[tool]]\nname = \"t\"\ndescription = \"A tool\"\ncommand = [\"true\"]\n";

/// Somebody with a configuration in their home.
fn user(config: &str) -> User {
    let user = User::new();
    user.write("taskwire.toml", &format!("{config}\n{TOOLS}"));
    user
}

fn run(user: &User, args: &[&str]) -> CommandResult {
    let mut command = user.command(&["connect"]);
    RunningCommand::start(command.args(args).current_dir(user.path(""))).end()
}

#[track_caller]
fn done(user: &User, args: &[&str]) -> CommandResult {
    let ended = run(user, args);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended
}

/// Puts a file where a client has it.
fn put(user: &User, name: &str, text: &str) -> String {
    let path = user.path(name);
    fs::create_dir_all(Path::new(&path).parent().expect("a directory")).expect("a directory");
    user.write(name, text)
}

fn read(user: &User, name: &str) -> String {
    fs::read_to_string(user.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn the_configuration_is_shown_alone_and_where_it_belongs_is_said() {
    let user = user("");
    let ended = done(&user, &["claude-code"]);
    assert_eq!(json_of(&ended.out), json!({"mcpServers": {"taskwire": {"type": "http", "url": URL}}}));
    for word in [
        "claude mcp add --transport http --scope user taskwire http://127.0.0.1:8787/mcp\n",
        &format!("{} (--write does it)", user.path(".claude.json")),
        &format!("the server must run: taskwire serve {}", user.path("taskwire.toml")),
    ] {
        assert!(ended.err.contains(word), "`{word}` in: {}", ended.err);
    }
    assert!(!Path::new(&user.path(".claude.json")).exists(), "shown, not written");
    let codex = done(&user, &["codex", "taskwire.toml", "--stdio", "--name", "mine"]);
    let table: toml::Table = toml::from_str(&codex.out).expect("TOML");
    let server = &table["mcp_servers"]["mine"];
    assert_eq!(server["command"].as_str(), Some(PROGRAM));
    let args: Vec<&str> = server["args"].as_array().expect("a list").iter().filter_map(|arg| arg.as_str()).collect();
    assert_eq!(args, ["serve", user.path("taskwire.toml").as_str(), "--stdio"]);
    let goose = done(&user, &["goose"]);
    assert!(goose.out.starts_with("extensions:\n  taskwire:\n    enabled: true\n"), "{}", goose.out);
    assert!(goose.err.contains(&user.path("config/goose/config.yaml")), "{}", goose.err);
}

/// What a document says that the program shows: for which client, and what. Either a line `COMMAND # taskwire connect CLIENT`, or a block
/// of configuration behind words that have `taskwire connect CLIENT` in them.
fn said_in(document: &str) -> Vec<(String, String)> {
    let (mut said, mut client, mut block) = (Vec::new(), String::new(), None::<String>);
    for line in document.lines() {
        match block.take() {
            Some(text) if line == "```" => said.push((std::mem::take(&mut client), text)),
            Some(text) => block = Some(format!("{text}{line}\n")),
            None if !client.is_empty() && ["```json", "```toml", "```yaml"].contains(&line) => block = Some(String::new()),
            None => {
                if let Some((command, client)) = line.split_once(" # taskwire connect ") {
                    said.push((client.trim().to_owned(), command.trim().to_owned()));
                } else if let Some((_, rest)) = line.rsplit_once("`taskwire connect ") {
                    client = rest.split('`').next().unwrap_or_default().to_owned();
                }
            }
        }
    }
    said
}

#[test]
fn the_readme_and_the_manual_show_what_the_program_shows() {
    let user = user("");
    for (document, clients) in [("README.md", 5), ("docs/manual/connect.md", 13)] {
        let path = format!("{}/../../{document}", env!("CARGO_MANIFEST_DIR"));
        let said = said_in(&fs::read_to_string(path).expect("the document"));
        let mut named: Vec<&str> = said.iter().map(|(client, _)| client.as_str()).collect();
        named.sort_unstable();
        named.dedup();
        assert_eq!(named.len(), clients, "{document} shows so many clients: {named:?}");
        for (client, text) in &said {
            let ended = done(&user, &[client.as_str()]);
            let text = text.replace("/usr/bin/taskwire", PROGRAM).replace("/home/you/taskwire.toml", &user.path("taskwire.toml"));
            if text.contains('\n') {
                assert_eq!(ended.out.trim_end(), text.trim_end(), "{document}: {client}");
            } else {
                assert!(ended.err.contains(&format!("\n  {text}\n")), "{document}: {client}: `{text}` in: {}", ended.err);
            }
        }
    }
}

#[test]
fn every_client_can_be_shown_and_starts_what_it_is_told() {
    let user = user("");
    let (_, help, _) = crate::kit::run(&["connect", "--help"]);
    for client in [
        "claude-code",
        "claude-desktop",
        "cursor",
        "vscode",
        "codex",
        "gemini",
        "windsurf",
        "zed",
        "cline",
        "continue",
        "goose",
        "opencode",
        "lm-studio",
    ] {
        assert!(help.contains(&format!("- {client}:")), "`{client}` in: {help}");
        let ended = done(&user, &[client, "--stdio"]);
        assert!(ended.out.contains(PROGRAM) && ended.out.contains(&user.path("taskwire.toml")), "{client}: {}", ended.out);
        assert!(!ended.out.contains("http:"), "{client}: {}", ended.out);
        if client != "claude-desktop" {
            let ended = done(&user, &[client]);
            assert!(ended.out.contains(URL), "{client}: {}", ended.out);
        }
    }
    let desktop = done(&user, &["claude-desktop"]);
    assert_eq!(json_of(&desktop.out)["mcpServers"]["taskwire"]["args"][2], "--stdio", "it starts its servers");
}

#[test]
fn a_client_connected_so_finds_the_tools() {
    let user = user("");
    let shown = json_of(&done(&user, &["claude-desktop"]).out);
    let server = &shown["mcpServers"]["taskwire"];
    let words = [&server["command"], &server["args"][0], &server["args"][1], &server["args"][2]].map(|word| word.as_str().expect("a word"));
    let tools = user.run(&["tools", &format!("stdio:{}", words.join(" "))]);
    assert_eq!(tools.code, Some(0), "{tools:?}");
    assert!(tools.out.contains("A tool"), "{}", tools.out);
}

#[test]
fn written_into_a_file_that_is_there_all_else_stays() {
    let user = user("");
    let old =
        "// my settings\n{\n\t\"theme\": \"Ayu\", // dark\n\t\"context_servers\": {\n\t\t\"b\": { \"command\": \"x\" }, // keep\n\t},\n}\n";
    let path = put(&user, "config/zed/settings.json", old);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("it is ours");
    let ended = done(&user, &["zed", "--write"]);
    assert_eq!(ended.out, format!("added `taskwire` to {path} (as it was: {path}.bak)\n"));
    let ours = format!("\t\t\"taskwire\": {{\n\t\t\t\"url\": \"{URL}\"\n\t\t}},\n");
    let expected = old.replace("// keep\n", &format!("// keep\n{ours}"));
    assert_eq!(read(&user, "config/zed/settings.json"), expected);
    assert_eq!(read(&user, "config/zed/settings.json.bak"), old);
    let mode = |name: &str| fs::metadata(user.path(name)).expect("a file").permissions().mode() & 0o777;
    assert_eq!((mode("config/zed/settings.json"), mode("config/zed/settings.json.bak")), (0o640, 0o640));
    let files = fs::read_dir(user.path("config/zed")).expect("a directory").count();
    assert_eq!(files, 2, "nothing else is left");
    let again = done(&user, &["zed", "--write"]);
    assert!(again.out.is_empty() && again.err.contains("already, just so: nothing to do"), "{again:?}");
    assert_eq!(fs::read_dir(user.path("config/zed")).expect("a directory").count(), 2, "no second backup of nothing");
}

#[test]
fn each_client_gets_its_file_where_it_looks_for_it() {
    let user = user("");
    let files: [(&[&str], &str, &str); 13] = [
        (&["claude-code"], ".claude.json", "/mcpServers/taskwire/url"),
        (&["claude-code", "--project"], ".mcp.json", "/mcpServers/taskwire/url"),
        (&["claude-desktop"], "config/Claude/claude_desktop_config.json", "/mcpServers/taskwire/command"),
        (&["cursor"], ".cursor/mcp.json", "/mcpServers/taskwire/url"),
        (&["vscode"], "config/Code/User/mcp.json", "/servers/taskwire/url"),
        (&["vscode", "--project"], ".vscode/mcp.json", "/servers/taskwire/url"),
        (&["gemini"], ".gemini/settings.json", "/mcpServers/taskwire/httpUrl"),
        (&["windsurf"], ".codeium/windsurf/mcp_config.json", "/mcpServers/taskwire/serverUrl"),
        (&["zed"], "config/zed/settings.json", "/context_servers/taskwire/url"),
        (&["cline"], ".cline/data/settings/cline_mcp_settings.json", "/mcpServers/taskwire/url"),
        (&["opencode"], "config/opencode/opencode.json", "/mcp/taskwire/url"),
        (&["opencode", "--project"], "opencode.json", "/mcp/taskwire/url"),
        (&["lm-studio"], ".lmstudio/mcp.json", "/mcpServers/taskwire/url"),
    ];
    for (args, file, pointer) in files {
        let mut words = args.to_vec();
        words.push("--write");
        done(&user, &words);
        let written = json_of(&read(&user, file));
        let expected = if pointer.ends_with("command") { PROGRAM } else { URL };
        assert_eq!(written.pointer(pointer), Some(&json!(expected)), "{args:?}: {written}");
    }
    done(&user, &["codex", "--write"]);
    assert_eq!(read(&user, ".codex/config.toml"), format!("[mcp_servers.taskwire]\nurl = \"{URL}\"\n"));
    done(&user, &["continue", "--project", "--write"]);
    assert!(read(&user, ".continue/mcpServers/taskwire.yaml").contains(&format!("    url: \"{URL}\"\n")));
}

#[test]
fn another_entry_of_that_name_is_replaced_only_with_force() {
    let user = user("");
    let old = "{\"z\": 1, \"mcpServers\": {\"taskwire\": {\"url\": \"http://other/mcp\"}}}\n";
    let path = put(&user, ".cursor/mcp.json", old);
    let refused = run(&user, &["cursor", "--write"]);
    refused.is_refusal(&format!("{path} has another `taskwire` already: replace it with --force, or choose a --name"));
    assert_eq!(read(&user, ".cursor/mcp.json"), old);
    done(&user, &["cursor", "--write", "--force"]);
    assert_eq!(json_of(&read(&user, ".cursor/mcp.json")), json!({"z": 1, "mcpServers": {"taskwire": {"url": URL}}}));
    done(&user, &["cursor", "--write", "--name", "second"]);
    assert_eq!(read(&user, ".cursor/mcp.json.bak"), old, "the first backup is not lost");
    assert!(read(&user, ".cursor/mcp.json.bak2").contains(URL));
    let codex = "model = \"x\" # mine\n\n[mcp_servers.taskwire]\ncommand = \"old\"\n\n[mcp_servers.taskwire.env]\nA = \"1\"\n\n# next\n[tui]\nx = 1\n";
    put(&user, ".codex/config.toml", codex);
    assert_eq!(run(&user, &["codex", "--write"]).code, Some(2));
    assert_eq!(read(&user, ".codex/config.toml"), codex);
    done(&user, &["codex", "--write", "--force"]);
    let new = read(&user, ".codex/config.toml");
    assert!(new.starts_with("model = \"x\" # mine\n\n[mcp_servers.taskwire]\nurl = ") && new.ends_with("# next\n[tui]\nx = 1\n"), "{new}");
    assert!(!new.contains("old") && !new.contains("A = "), "{new}");
}

#[test]
fn what_cannot_be_used_changes_nothing() {
    let user = user("");
    let broken = "{\n  \"mcpServers\": {\n";
    let path = put(&user, ".cursor/mcp.json", broken);
    let refused = run(&user, &["cursor", "--write"]);
    refused.is_refusal(&format!(
        "{path} is left as it is: line 3, column 1: a name in quotes or a `}}` is expected here; `taskwire connect cursor` without --write \
         shows what to add"
    ));
    assert_eq!(read(&user, ".cursor/mcp.json"), broken);
    let says = |args: &[&str], word: &str| {
        let ended = run(&user, args);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{args:?}: {ended:?}");
        assert!(ended.err.contains(word), "{args:?}: `{word}` in: {}", ended.err);
    };
    says(&["clade-code"], "claude-code");
    says(&["nothing-like-it"], "lm-studio");
    says(&["cursor", "--write", "--name", "a b"], "`a b` is no name for a server");
    says(&["cursor", "none.toml", "--write"], "cannot read none.toml");
    says(&["claude-desktop", "--http"], "starts its servers");
    says(&["windsurf", "--project", "--write"], "leave out --project");
    says(&["goose", "--write"], "files of goose are shown, not written");
    says(&["cursor", "--url", "ftp://host/", "--write"], "`ftp://host/` is no ");
    user.write("bad.toml", "listn = 1\n");
    says(&["cursor", "bad.toml", "--write"], "did you mean `listen`?");
    fs::remove_file(user.path("taskwire.toml")).expect("it was there");
    says(&["gemini", "--write"], "there is no taskwire.toml here: make one with `taskwire init`");
    fs::create_dir_all(user.path(".gemini")).expect("a directory");
    symlink("nowhere", user.path(".gemini/settings.json")).expect("a link");
    says(&["gemini", "--url", URL, "--write"], "it is a link that leads nowhere");
    assert!(!Path::new(&user.path(".cursor/mcp.json.bak")).exists(), "nothing was touched");
}

#[test]
fn a_file_behind_a_link_is_changed_where_it_is() {
    let user = user("");
    put(&user, "dotfiles/mcp.json", "{}\n");
    fs::create_dir_all(user.path(".cursor")).expect("a directory");
    symlink(user.path("dotfiles/mcp.json"), user.path(".cursor/mcp.json")).expect("a link");
    done(&user, &["cursor", "--write"]);
    assert!(fs::symlink_metadata(user.path(".cursor/mcp.json")).expect("it is there").is_symlink(), "the link is still one");
    assert_eq!(json_of(&read(&user, "dotfiles/mcp.json"))["mcpServers"]["taskwire"]["url"], URL);
}

#[test]
fn tokens_are_named_and_never_shown() {
    let user = user("[auth]\ntokens = [{ token = \"env:MY_TOKEN\", caller = \"ci\" }, { token = \"s3cret\", caller = \"me\" }]");
    for (client, header) in
        [("claude-code", "Bearer ${MY_TOKEN}"), ("cursor", "Bearer ${env:MY_TOKEN}"), ("opencode", "Bearer {env:MY_TOKEN}")]
    {
        let ended = done(&user, &[client]);
        assert!(ended.out.contains(header), "{client}: {}", ended.out);
        assert!(ended.err.contains("the token of `ci` comes from $MY_TOKEN"), "{client}: {}", ended.err);
    }
    let codex = done(&user, &["codex", "--token-env", "OTHER"]);
    assert!(codex.out.contains("bearer_token_env_var = \"OTHER\"\n"), "{}", codex.out);
    let code = json_of(&done(&user, &["vscode"]).out);
    assert_eq!((&code["inputs"][0]["id"], &code["inputs"][0]["password"]), (&json!("taskwire-token"), &json!(true)));
    let plain = user.write("plain.toml", "[auth]\ntokens = [{ token = \"s3cret\", caller = \"me\" }]\n");
    for client in ["claude-code", "vscode", "codex", "zed", "goose", "continue"] {
        let ended = done(&user, &[client, &plain]);
        assert!(!ended.out.contains("s3cret") && !ended.err.contains("s3cret"), "{client}: {ended:?}");
    }
    // A client that would need the token itself is not written to.
    let refused = run(&user, &["zed", "--write"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("takes no token from its environment: connect it with --stdio"), "{}", refused.err);
    assert!(!Path::new(&user.path("config/zed/settings.json")).exists());
    let stdio = done(&user, &["zed", "--stdio", "--write"]);
    assert!(stdio.err.contains("the server takes tokens from $MY_TOKEN: Zed must have that in its environment"), "{}", stdio.err);
}
