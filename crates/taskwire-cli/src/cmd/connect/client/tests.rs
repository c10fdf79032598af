//! Where each client has its configuration, and what is written there.

use serde_json::{Value, json};

use super::*;

const NAME: &str = "taskwire";

fn http(token: Option<&str>) -> Transport {
    Transport::Http { url: "http://h/mcp".to_owned(), token_variable: token.map(ToOwned::to_owned) }
}

fn stdio() -> Transport {
    let args = ["serve", "/t oml", "--stdio"].map(ToOwned::to_owned).to_vec();
    Transport::Stdio { program: "/bin/taskwire".to_owned(), args }
}

fn directories(is_macos: bool) -> Directories {
    let [home, config, current] = ["/h", "/x", "/p"].map(PathBuf::from);
    Directories { home, config, current, claude: None, codex: None, is_macos }
}

#[test]
fn each_client_has_its_own_words_for_an_address() {
    let entry = |client: Client| client.server_config(NAME, &http(Some("TOKEN"))).value();
    let plain = |key: &str, header: &str| json!({key: "http://h/mcp", "headers": {"Authorization": header}});
    let typed = |kind: &str, header: &str| json!({"type": kind, "url": "http://h/mcp", "headers": {"Authorization": header}});
    let expected: [(Client, Value); 11] = [
        (Client::ClaudeCode, typed("http", "Bearer ${TOKEN}")),
        (Client::Cursor, plain("url", "Bearer ${env:TOKEN}")),
        (Client::VsCode, typed("http", "Bearer ${input:taskwire-token}")),
        (Client::Codex, json!({"url": "http://h/mcp", "bearer_token_env_var": "TOKEN"})),
        (Client::Gemini, plain("httpUrl", "Bearer ${TOKEN}")),
        (Client::Windsurf, plain("serverUrl", "Bearer ${env:TOKEN}")),
        (Client::Zed, plain("url", "Bearer PUT-THE-TOKEN-HERE")),
        (Client::Cline, typed("streamableHttp", "Bearer PUT-THE-TOKEN-HERE")),
        (Client::OpenCode, typed("remote", "Bearer {env:TOKEN}")),
        (Client::LmStudio, plain("url", "Bearer PUT-THE-TOKEN-HERE")),
        (
            Client::Continue,
            json!({
                "name": NAME,
                "type": "streamable-http",
                "url": "http://h/mcp",
                "requestOptions": {"headers": {"Authorization": "Bearer ${{ secrets.TOKEN }}"}},
            }),
        ),
    ];
    for (client, expected) in expected {
        assert_eq!(entry(client), expected, "{client:?}");
    }
    let goose = entry(Client::Goose);
    assert_eq!((&goose["uri"], &goose["env_keys"], &goose["type"]), (&json!("http://h/mcp"), &json!(["TOKEN"]), &json!("streamable_http")));
    for client in Client::value_variants() {
        let without = client.server_config(NAME, &http(None)).value().to_string();
        assert!(!without.contains("Authorization") && !without.contains("TOKEN"), "{client:?}: {without}");
    }
}

#[test]
fn each_client_has_its_own_words_for_a_program() {
    for client in Client::value_variants() {
        let entry = client.server_config(NAME, &stdio()).value();
        let (command, args) = match client {
            Client::OpenCode => (json!(["/bin/taskwire", "serve", "/t oml", "--stdio"]), Value::Null),
            _ => (json!("/bin/taskwire"), json!(["serve", "/t oml", "--stdio"])),
        };
        let key = if *client == Client::Goose { "cmd" } else { "command" };
        assert_eq!((&entry[key], &entry["args"]), (&command, &args), "{client:?}");
        assert!(entry.get("url").is_none(), "{client:?}");
    }
}

#[test]
fn files_are_where_the_system_has_them() {
    let file = |client: Client, scope, is_macos| {
        let files = client.files(scope, NAME, &directories(is_macos));
        files.first().map(|file| file.display().to_string()).unwrap_or_default()
    };
    let user = |client| (file(client, Scope::User, false), file(client, Scope::User, true));
    let same = |path: &str| (path.to_owned(), path.to_owned());
    assert_eq!(user(Client::ClaudeCode), same("/h/.claude.json"));
    assert_eq!(user(Client::Cursor), same("/h/.cursor/mcp.json"));
    assert_eq!(user(Client::Codex), same("/h/.codex/config.toml"));
    assert_eq!(user(Client::Zed), ("/x/zed/settings.json".to_owned(), "/h/.config/zed/settings.json".to_owned()));
    let support = "/h/Library/Application Support";
    assert_eq!(user(Client::VsCode), ("/x/Code/User/mcp.json".to_owned(), format!("{support}/Code/User/mcp.json")));
    let desktop = "Claude/claude_desktop_config.json";
    assert_eq!(user(Client::ClaudeDesktop), (format!("/x/{desktop}"), format!("{support}/{desktop}")));
    assert_eq!(file(Client::ClaudeCode, Scope::Project, false), "/p/.mcp.json");
    assert_eq!(file(Client::Continue, Scope::Project, false), "/p/.continue/mcpServers/taskwire.yaml");
    assert_eq!(file(Client::Windsurf, Scope::Project, false), "", "it has none");
    let moved = Directories { claude: Some("/c".into()), codex: Some("/d".into()), ..directories(false) };
    assert_eq!(Client::ClaudeCode.files(Scope::User, NAME, &moved), [Path::new("/c/.claude.json")]);
    assert_eq!(Client::Codex.files(Scope::User, NAME, &moved), [Path::new("/d/config.toml")]);
}

#[test]
fn commands_of_clients_are_quoted_for_a_shell() {
    let command = |client: Client, reach: &Transport| client.command(NAME, reach, Scope::User).unwrap_or_default();
    let expected = "claude mcp add --transport http --scope user taskwire http://h/mcp --header 'Authorization: Bearer ${TOKEN}'";
    assert_eq!(command(Client::ClaudeCode, &http(Some("TOKEN"))), expected);
    assert_eq!(command(Client::ClaudeCode, &stdio()), "claude mcp add --scope user taskwire -- /bin/taskwire serve '/t oml' --stdio");
    assert_eq!(command(Client::Codex, &http(Some("T"))), "codex mcp add taskwire --url http://h/mcp --bearer-token-env-var T");
    assert_eq!(command(Client::Codex, &stdio()), "codex mcp add taskwire -- /bin/taskwire serve '/t oml' --stdio");
    assert_eq!(command(Client::Gemini, &http(None)), "gemini mcp add --scope user --transport http taskwire http://h/mcp");
    assert_eq!(command(Client::Gemini, &stdio()), "gemini mcp add --scope user taskwire /bin/taskwire serve '/t oml' -- --stdio");
    let code = command(Client::VsCode, &http(None));
    let json = code.strip_prefix("code --add-mcp '").and_then(|rest| rest.strip_suffix('\'')).expect("one word");
    let json: Value = serde_json::from_str(json).expect("JSON");
    assert_eq!(json, json!({"name": NAME, "type": "http", "url": "http://h/mcp"}));
    assert_eq!(command(Client::VsCode, &http(Some("T"))), "", "it has to ask for the token");
    assert_eq!(command(Client::Cursor, &http(None)), "");
}
