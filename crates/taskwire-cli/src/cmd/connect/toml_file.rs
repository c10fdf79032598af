//! Adds a table to a TOML file. All else in it stays as it is, byte for byte.

use toml::{Table, Value};

use super::{config_value::OrderedValue, json_file::AddError};

/// The table that has the servers.
const SERVERS: &str = "mcp_servers";

/// The text with `item` as the table `name` of the servers. `None` if it is there already. `replace` allows to replace another table of
/// that name.
///
/// # Errors
/// When the text cannot be read, or has something else there.
pub(super) fn add(text: &str, name: &str, item: &OrderedValue, replace: bool) -> Result<Option<String>, AddError> {
    let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let section = item.toml(&heading(name), newline);
    let entry = parse(&section).map_err(AddError::Unusable)?.remove(SERVERS);
    let entry = entry.and_then(|mut servers| servers.as_table_mut()?.remove(name));
    let Some(entry) = entry else { return Err(AddError::Unusable(format!("`{name}` cannot be written there"))) };
    let old = parse(text).map_err(AddError::Unusable)?;
    let no_table = || AddError::Unusable(format!("`{SERVERS}` is no table"));
    let existing = match old.get(SERVERS) {
        None => None,
        Some(servers) => servers.as_table().ok_or_else(no_table)?.get(name),
    };
    let new = match existing {
        Some(other) if *other == entry => return Ok(None),
        Some(_) if !replace => return Err(AddError::NameTaken),
        Some(_) => replace_tables(text, name, &section),
        None => append(text, &section, newline),
    };
    // The new text must differ from the old one by the new table and nothing else.
    let mut expected = old;
    let servers = expected.entry(SERVERS).or_insert_with(|| Value::Table(Table::new()));
    servers.as_table_mut().ok_or_else(no_table)?.insert(name.to_owned(), entry);
    match parse(&new) {
        Ok(table) if table == expected => Ok(Some(new)),
        _ => Err(AddError::Unusable("it cannot be changed without changing more than that".to_owned())),
    }
}

/// The heading of a server's table.
pub(super) fn heading(name: &str) -> String {
    format!("{SERVERS}.{name}")
}

fn parse(text: &str) -> Result<Table, String> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| text.get(..span.start).unwrap_or_default().matches('\n').count() + 1);
        line.map_or_else(String::new, |line| format!("line {line}: ")) + error.message()
    })
}

/// The text with a section at its end.
fn append(text: &str, section: &str, newline: &str) -> String {
    let newlines = match text {
        "" => 0,
        text if text.ends_with('\n') => 1,
        _ => 2,
    };
    format!("{text}{}{section}", newline.repeat(newlines))
}

/// The text with a section instead of this server's tables.
fn replace_tables(text: &str, name: &str, section: &str) -> String {
    let (mut new, mut section) = (String::with_capacity(text.len() + section.len()), Some(section));
    let mut is_inside = false;
    // Comments and blank lines at the end of a table may belong to the next one.
    let mut pending = String::new();
    for line in text.split_inclusive('\n') {
        let words = line.trim();
        if words.starts_with('[') {
            is_inside = is_heading_of(words, name);
            new.push_str(&std::mem::take(&mut pending));
            if is_inside {
                new.push_str(section.take().unwrap_or_default());
                continue;
            }
        }
        if !is_inside {
            new.push_str(line);
        } else if words.is_empty() || words.starts_with('#') {
            pending.push_str(line);
        } else {
            pending.clear();
        }
    }
    new + &pending
}

/// Whether this line begins a table of the server.
fn is_heading_of(line: &str, name: &str) -> bool {
    let table: Option<Table> = toml::from_str(line).ok();
    table.and_then(|table| table.get(SERVERS)?.as_table()?.get(name).map(|_| ())).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item() -> OrderedValue {
        OrderedValue::members([("url", OrderedValue::text("http://h/mcp"))])
    }

    fn added(text: &str) -> String {
        add(text, "taskwire", &item(), false).expect("it can be added").expect("it was not there")
    }

    const SECTION: &str = "[mcp_servers.taskwire]\nurl = \"http://h/mcp\"\n";

    #[test]
    fn a_table_is_added_behind_the_rest() {
        assert_eq!(added(""), SECTION);
        let text = "model = \"x\" # mine\n\n[mcp_servers.other]\ncommand = \"y\"\n";
        assert_eq!(added(text), format!("{text}\n{SECTION}"));
        assert_eq!(added("model = \"x\""), format!("model = \"x\"\n\n{SECTION}"));
        assert_eq!(added("a = 1\r\n"), format!("a = 1\r\n\r\n{}", SECTION.replace('\n', "\r\n")));
        assert_eq!(add(&added(text), "taskwire", &item(), false), Ok(None), "what is there is not added again");
    }

    #[test]
    fn another_of_that_name_is_replaced_only_if_that_is_wanted() {
        let (before, after) = ("a = 1 # mine\n\n[mcp_servers.b]\ncommand = \"y\"\n\n", "\n# the next one\n[mcp_servers.c]\nurl = \"z\"\n");
        let theirs = "[mcp_servers.\"taskwire\"] # x\n# old\ncommand = \"t\"\n\n[mcp_servers.taskwire.env]\nA = \"1\"\n";
        let text = format!("{before}{theirs}{after}");
        assert_eq!(add(&text, "taskwire", &item(), false), Err(AddError::NameTaken));
        let new = add(&text, "taskwire", &item(), true).expect("it can be replaced").expect("it was another");
        assert!(new.starts_with(&format!("{before}{SECTION}")) && new.ends_with(after), "{new}");
        assert!(!new.contains("command = \"t\"") && !new.contains("A = "), "{new}");
    }

    #[test]
    fn what_cannot_be_changed_safely_is_left_alone() {
        let refused = |text: &str| match add(text, "taskwire", &item(), true) {
            Err(AddError::Unusable(reason)) => reason,
            other => panic!("{text}: {other:?}"),
        };
        assert!(refused("a = 1\nb = \n").starts_with("line 2: "));
        assert_eq!(refused("mcp_servers = 1\n"), "`mcp_servers` is no table");
        assert!(refused("mcp_servers = { b = { url = \"x\" } }\n").contains("without changing more"));
        assert!(refused("[mcp_servers]\ntaskwire = { url = \"x\" }\n").contains("without changing more"));
    }
}
