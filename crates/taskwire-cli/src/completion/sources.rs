//! Completions from the user's data and from servers: servers, tools, arguments, tasks, questions.

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;
use taskwire::client::{CallRecorder, Client, Entry, Era, Ledger, Question, QuestionKind, Target, ToolInfo};
use tokio::time::timeout;

use super::{Candidate, TypedWords, files};
use crate::client::{
    arguments,
    client_config::{ClientConfig, Server},
    connection::{ConnectionArgs, ConnectionNeeds},
    schema::{Parameter, Parameters},
    user_data::{id_or_key, without_query},
};

/// How long to wait for a server: somebody has pressed a key and sees nothing.
const SERVER_TIMEOUT: Duration = Duration::from_millis(800);
/// How long closing the connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

fn ledger() -> Option<Ledger> {
    Ledger::of_user_read_only().ok().flatten()
}

/// The tasks of this user, newest first.
fn entries() -> Vec<Entry> {
    ledger().and_then(|ledger| ledger.entries().ok()).unwrap_or_default()
}

/// The servers of client.toml, and those that were used before.
pub(super) fn servers() -> Vec<Candidate> {
    let config = ClientConfig::read().ok();
    let mut seen: BTreeSet<String> = config.iter().flat_map(ClientConfig::servers).map(|server| server.target.to_string()).collect();
    let named = config.iter().flat_map(ClientConfig::servers);
    let mut found: Vec<Candidate> =
        named.map(|server| Candidate::whole(server.name(), &without_query(&server.target.to_string()))).collect();
    for entry in entries() {
        let server = entry.reference.server;
        // The query of an address may be a secret, and is shown nowhere.
        if without_query(&server) == server && seen.insert(server.clone()) {
            found.push(Candidate::whole(server, "used before"));
        }
    }
    found
}

/// The server's reply, if it comes soon.
fn query<T>(server: &Server, connection: &ConnectionArgs, era: Option<Era>, question: impl AsyncFnOnce(&Client) -> Option<T>) -> Option<T> {
    // No program is started for this. No sign-in is used either: to end while a renewal is being stored would lose it.
    if !matches!(server.target, Target::Url(_)) || server.settings.as_ref().is_some_and(|known| known.oauth) {
        return None;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().ok()?;
    let answer = runtime.block_on(async {
        let needs = ConnectionNeeds { era, is_unattended: true, fails_fast: true, ..ConnectionNeeds::default() };
        let asking = async {
            let client = connection.open(server, needs).await.ok()?;
            let answer = question(&client).await?;
            Some((client, answer))
        };
        let (client, answer) = timeout(SERVER_TIMEOUT, asking).await.ok()??;
        let _ = timeout(CLOSE_TIMEOUT, client.close()).await;
        Some(answer)
    });
    // Dropping the runtime would wait for a name that is being looked up.
    runtime.shutdown_background();
    answer
}

/// The server that was typed.
fn server(typed: &TypedWords<'_>) -> Option<Server> {
    ClientConfig::read().ok()?.find(typed.value("SERVER")?).ok()
}

fn fetch_tools(typed: &TypedWords<'_>, server: &Server) -> Option<Vec<ToolInfo>> {
    query(server, &typed.connection(), None, async |client: &Client| client.tools().await.ok())
}

/// The tools of the server; those that were called there before, if it does not reply.
pub(super) fn tools(typed: &TypedWords<'_>) -> Vec<Candidate> {
    let Some(server) = server(typed) else { return Vec::new() };
    if let Some(tools) = fetch_tools(typed, &server) {
        let help = |tool: &ToolInfo| tool.description.clone().or_else(|| tool.title.clone()).unwrap_or_default();
        return tools.iter().map(|tool| Candidate::whole(tool.name.as_str(), &help(tool))).collect();
    }
    let address = server.target.to_string();
    let there = entries().into_iter().filter(|entry| entry.reference.server == address);
    let names: BTreeSet<String> = there.map(|entry| entry.reference.tool).filter(|tool| !tool.is_empty()).collect();
    names.into_iter().map(|name| Candidate::whole(name, "called before")).collect()
}

/// The arguments of the tool, their values, and files that they can be in.
pub(super) fn arguments(typed: &TypedWords<'_>, word: &str) -> Vec<Candidate> {
    if let Some(found) = files::files_in_value(word) {
        return found;
    }
    let Some(tools) = server(typed).and_then(|server| fetch_tools(typed, &server)) else { return Vec::new() };
    let tool = tools.iter().find(|tool| Some(tool.name.as_str()) == typed.value("TOOL"));
    tool.map(|tool| fields(&tool.input_schema, typed.all("ARGUMENT"), word)).unwrap_or_default()
}

/// The parameters of a schema that were not typed yet.
fn fields(schema: &Value, typed_args: &[String], word: &str) -> Vec<Candidate> {
    let parameters = Parameters::new(schema);
    if let Some((name, _)) = word.split_once('=') {
        let values = parameters.get(name).map(|parameter| values(&parameter)).unwrap_or_default();
        return values.into_iter().map(|value| Candidate::whole(format!("{name}={value}"), "")).collect();
    }
    let is_given = |name: &str| typed_args.iter().any(|word| arguments::key(word) == Some(name));
    let rest = parameters.all().into_iter().filter(|parameter| parameter.is_list() || !is_given(parameter.name));
    rest.map(|parameter| {
        let kind = parameter.kind();
        // An object can only be given as JSON.
        let sign = if kind == "object" { ":=" } else { "=" };
        let need = if parameter.is_required { "" } else { ", optional" };
        let what = parameter.description().map(|text| format!(": {text}")).unwrap_or_default();
        Candidate::part(format!("{}{sign}", parameter.name), &format!("{kind}{need}{what}"))
    })
    .collect()
}

/// Possible values of a parameter.
fn values(parameter: &Parameter<'_>) -> Vec<String> {
    if let Some(choices) = parameter.choices() {
        return choices.into_iter().map(ToOwned::to_owned).collect();
    }
    match parameter.default() {
        _ if parameter.kind() == "boolean" => vec!["true".to_owned(), "false".to_owned()],
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Number(number)) => vec![number.to_string()],
        _ => Vec::new(),
    }
}

/// The tasks of this user: those that may go on first, then the newest.
pub(super) fn tasks(typed: &TypedWords<'_>, word: &str) -> Vec<Candidate> {
    let config = ClientConfig::read().ok();
    let find = |text: &str| config.as_ref().and_then(|config| config.find(text).ok());
    let (beginning, address) = match word.rsplit_once('#') {
        None => (String::new(), None),
        Some((server, _)) => match find(server) {
            Some(found) => (format!("{server}#"), Some(found.target.to_string())),
            None => return Vec::new(),
        },
    };
    let mut entries = entries();
    entries.retain(|entry| address.as_ref().is_none_or(|address| entry.reference.server == *address));
    entries.sort_by_key(|entry| entry.ended || entry.status.is_some_and(|status| status.is_terminal()));
    let typed_tasks = typed.all("TASK");
    let mut found = Vec::new();
    for entry in &entries {
        let text = format!("{beginning}{}", id_or_key(&entry.reference));
        if typed_tasks.contains(&text) || !text.starts_with(word) {
            continue;
        }
        let status = match (entry.status, &entry.reference.task) {
            (Some(status), _) => status.as_str(),
            (None, Some(_)) => "started",
            (None, None) => "sent",
        };
        let server = find(&entry.reference.server).map_or_else(|| entry.reference.server.clone(), |server| server.name());
        found.push(Candidate::whole(text, &format!("{}, {status}, {}", entry.reference.tool, without_query(&server))));
    }
    found
}

/// The open questions of the task that was typed. In the legacy era only those that were seen: the server sends them to the session that
/// runs the task, and this process must not use that.
fn open_questions(typed: &TypedWords<'_>) -> Option<Vec<Question>> {
    let entry = ledger()?.find(typed.value("TASK")?).ok()?;
    let id = entry.reference.task.filter(|_| entry.reference.era == Era::Modern)?;
    let server = ClientConfig::read().ok()?.find(&entry.reference.server).ok()?;
    let task = query(&server, &typed.connection(), Some(Era::Modern), async |client: &Client| client.task(&id).await.ok())?;
    Some(task.questions)
}

/// What can follow the task in an answer: the keys of its questions, or the answer to the only one.
pub(super) fn questions(typed: &TypedWords<'_>) -> Vec<Candidate> {
    let Some(task) = typed.value("TASK") else { return Vec::new() };
    if let Some(inputs) = open_questions(typed) {
        let mut found: Vec<Candidate> = inputs.iter().map(|input| Candidate::whole(input.key.as_str(), &input.message)).collect();
        if let [only] = inputs.as_slice() {
            found.extend(only_field(only));
        }
        return found;
    }
    let seen = ledger().and_then(|ledger| ledger.open_questions(ledger.find(task).ok()?.id).ok()).unwrap_or_default();
    seen.into_iter().map(|(key, _)| Candidate::whole(key, "")).collect()
}

/// The fields of the question that was typed, and their values.
pub(super) fn answers(typed: &TypedWords<'_>, word: &str) -> Vec<Candidate> {
    if let Some(found) = files::files_in_value(word) {
        return found;
    }
    let inputs = open_questions(typed).unwrap_or_default();
    let Some(input) = inputs.iter().find(|input| Some(input.key.as_str()) == typed.value("KEY")) else { return Vec::new() };
    let QuestionKind::Form { schema } = &input.kind else { return Vec::new() };
    let mut found = only_field(input);
    found.extend(fields(schema, typed.all("VALUE"), word));
    found
}

/// The values of a form's only field, which needs no name.
fn only_field(input: &Question) -> Vec<Candidate> {
    let QuestionKind::Form { schema } = &input.kind else { return Vec::new() };
    let all = Parameters::new(schema).all();
    let [only] = all.as_slice() else { return Vec::new() };
    values(only).into_iter().map(|value| Candidate::whole(value, only.name)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(schema: &Value, typed: &[&str], word: &str) -> Vec<String> {
        let typed: Vec<String> = typed.iter().map(|word| (*word).to_owned()).collect();
        fields(schema, &typed, word).into_iter().map(|candidate| candidate.text).collect()
    }

    #[test]
    fn fields_are_completed_by_name_and_then_by_value() {
        let schema = json!({
            "type": "object",
            "properties": {
                "colour": {"enum": ["red", "green"]},
                "deep": {"type": "object"},
                "from": {"type": "integer", "default": 10},
                "path": {"type": "string", "description": "where"},
                "sure": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["path"],
        });
        assert_eq!(texts(&schema, &[], ""), ["path=", "colour=", "deep:=", "from=", "sure=", "tags="]);
        assert_eq!(texts(&schema, &["path=x", "deep:={}", "tags=a"], ""), ["colour=", "from=", "sure=", "tags="]);
        assert_eq!(texts(&schema, &[], "colour="), ["colour=red", "colour=green"]);
        assert_eq!(texts(&schema, &[], "sure=t"), ["sure=true", "sure=false"], "what does not fit is left out later");
        assert_eq!(texts(&schema, &[], "from="), ["from=10"]);
        for word in ["path=", "other=", "deep:=", "="] {
            assert_eq!(texts(&schema, &[], word), Vec::<String>::new(), "{word}");
        }
        let help: Vec<String> = fields(&schema, &[], "").into_iter().map(|candidate| candidate.help).collect();
        assert_eq!(help[..2], ["string: where", "red|green, optional"]);
    }
}
