//! Warnings about definitions that can be used, but probably do not do what their author wants.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::Path,
};

use serde_json::Map;

use super::{CompiledDefinition, Definition, Inherit, Parameters, TextTemplate, USUAL_PATH};
use crate::tool::portability;

/// How much of a script is read.
const SCRIPT_BYTES_MAX: u64 = 256 * 1024;

impl Definition {
    /// What is probably a mistake: parameters that nothing uses, values that a script does not read or seems to run, a program that is not
    /// there, a description that says nothing, a name or a schema that some clients refuse. Empty if the definition cannot be used at all:
    /// see [`check`](Self::check).
    pub fn warnings(&self) -> Vec<String> {
        let Ok(compiled) = self.compile() else { return Vec::new() };
        let mut warnings = compiled.argv.warnings();
        warnings.extend(self.script_warnings(&compiled));
        if let (Some(value), Some(reader)) =
            (compiled.stdin.as_ref().and_then(TextTemplate::free_text_parameter), compiled.argv.stdin_reader())
        {
            let program = reader.program;
            warnings.push(format!(
                "stdin: whoever calls writes in {{{value}}} what {program} runs, and that can be commands for a shell too (`\\!`, `.shell`)"
            ));
        }
        warnings.extend(self.unused(&compiled));
        warnings.extend(self.program_problem(&compiled));
        if says_nothing(&self.description, compiled.argv.program()) {
            warnings.push(
                "its description says only which program it runs: models choose tools by it, so say in `description` what it does"
                    .to_owned(),
            );
        }
        warnings.extend(portability(&self.name, &self.description, &self.input_schema));
        warnings
    }

    /// Why the program cannot be run, as far as can be seen without running it. None if the definition cannot be used at all.
    pub fn missing_program(&self) -> Option<String> {
        self.program_problem(&self.compile().ok()?)
    }

    fn program_problem(&self, compiled: &CompiledDefinition) -> Option<String> {
        missing(compiled.argv.program(), &self.cwd, &self.search_path(compiled)?)
    }

    /// Warnings about script files that seem to run a value.
    fn script_warnings(&self, compiled: &CompiledDefinition) -> Vec<String> {
        let scripts = compiled.argv.scripts();
        let found = scripts.iter().flat_map(|script| {
            let is_program = script.file == compiled.argv.program();
            let text = shell_script(&self.cwd.join(script.file), is_program).filter(|_| !is_program || script.file.contains('/'));
            let warnings = text.map(|text| script.warnings(&text)).unwrap_or_default();
            warnings.into_iter().map(move |warning| format!("{}: {warning}", script.file))
        });
        found.collect()
    }

    fn unused(&self, compiled: &CompiledDefinition) -> impl Iterator<Item = String> {
        let texts = compiled.env.iter().map(|(_, text)| text).chain(&compiled.stdin);
        let used: BTreeSet<&str> =
            compiled.argv.parameters().chain(compiled.argv.conditions()).chain(texts.flat_map(|text| text.parameters())).collect();
        Parameters::of(&self.input_schema)
            .all()
            .filter(move |(name, _)| !used.contains(name))
            .map(|(name, _)| format!("nothing uses the parameter `{name}`: {{{name}}} is neither in `command` nor in `env` nor in `stdin`"))
    }

    /// The PATH that the command's program is searched in; None if that depends on the call.
    fn search_path(&self, compiled: &CompiledDefinition) -> Option<OsString> {
        let is_inherited = match &self.inherit_env {
            Inherit::All => true,
            Inherit::Only(names) => names.iter().any(|name| name == "PATH"),
        };
        let mut path = match compiled.env.iter().find(|(name, _)| name == "PATH") {
            Some((_, text)) => OsString::from(text.fill(&Map::new()).ok().flatten()?),
            None => std::env::var_os("PATH").filter(|_| is_inherited).unwrap_or_else(|| USUAL_PATH.into()),
        };
        if let Some(own) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
            path.push(":");
            path.push(own);
        }
        Some(path)
    }
}

/// The beginning of a file, if it is a shell script: a program says so in its first line.
fn shell_script(file: &Path, is_program: bool) -> Option<String> {
    // Reading from anything but a file, such as a pipe, could block.
    fs::metadata(file).ok().filter(fs::Metadata::is_file)?;
    let mut bytes = Vec::new();
    fs::File::open(file).ok()?.take(SCRIPT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(&error.into_bytes()).into_owned());
    let first = text.lines().next().unwrap_or_default();
    let is_shell = first.starts_with("#!") && first.split(['/', ' ']).any(|word| word.ends_with("sh") && word.len() < 6);
    (is_shell || !is_program).then_some(text)
}

/// Whether a description says no more than the name of the program.
fn says_nothing(description: &str, program: &str) -> bool {
    let plain = description.replace(['`', '"', '\''], "").to_lowercase();
    let words: Vec<&str> = plain.split_whitespace().map(|word| word.trim_end_matches(['.', '!'])).collect();
    let rest = match words.as_slice() {
        ["runs" | "run" | "executes" | "execute" | "calls" | "call", rest @ ..] => rest,
        rest => rest,
    };
    let rest = if let ["the", rest @ ..] = rest { rest } else { rest };
    let rest = if let [rest @ .., "command" | "program" | "script"] = rest { rest } else { rest };
    let program = program.to_lowercase();
    match rest {
        [] => true,
        [word] => *word == program || Some(*word) == program.rsplit('/').next(),
        _ => false,
    }
}

/// Why a program cannot be run, as far as we can see.
fn missing(program: &str, cwd: &Path, path: &OsStr) -> Option<String> {
    if !program.contains('/') {
        let is_found = std::env::split_paths(path).any(|dir| program_problem(&cwd.join(dir).join(program)).is_none());
        return (!is_found).then(|| format!("the program `{program}` is not found in PATH: is it installed?"));
    }
    let file = cwd.join(program);
    program_problem(&file).map(|why| format!("the program {} {why}", file.display()))
}

fn program_problem(file: &Path) -> Option<&'static str> {
    match fs::metadata(file) {
        Err(_) => Some("is not there"),
        Ok(it) if !it.is_file() => Some("is no file"),
        Ok(it) if it.permissions().mode() & 0o111 == 0 => Some("is not executable (`chmod +x` makes it so)"),
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::command::Part;

    fn definition(command: Vec<Part>) -> Definition {
        let mut definition = Definition::new("tool", "A tool", command);
        definition.input_schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "v": {"type": "boolean"}}});
        definition
    }

    #[test]
    fn parameters_that_nothing_uses_are_told() {
        let unused =
            |name: &str| format!("nothing uses the parameter `{name}`: {{{name}}} is neither in `command` nor in `env` nor in `stdin`");
        assert_eq!(definition(vec!["cat".into()]).warnings(), [unused("a"), unused("v")]);
        assert_eq!(definition(vec!["cat".into(), "{{a}}".into(), "{v}".into()]).warnings(), [unused("a")], "that is text");
        let when = Part::When { when: "v".to_owned(), args: vec!["-v".to_owned()] };
        assert_eq!(definition(vec!["cat".into(), when.clone()]).warnings(), [unused("a")]);
        let mut it = definition(vec!["cat".into(), when]);
        it.stdin = Some("{a}".to_owned());
        assert_eq!(it.warnings(), [""; 0]);
        it.stdin = None;
        it.env.insert("A".to_owned(), "is {a}".to_owned());
        assert_eq!(it.warnings(), [""; 0]);
        it.name = String::new();
        assert_eq!(it.warnings(), [""; 0], "it cannot be used: that comes first");
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let warnings = |program: &str| Definition::new("tool", "A tool", vec![program.into()]).warnings();
        assert_eq!(warnings("sh"), [""; 0]);
        assert_eq!(warnings("/bin/sh"), [""; 0]);
        assert_eq!(warnings("/no/such/program"), ["the program /no/such/program is not there"]);
        assert_eq!(warnings("no-such-program-here"), ["the program `no-such-program-here` is not found in PATH: is it installed?"]);
        assert_eq!(warnings("/"), ["the program / is no file"]);
        assert_eq!(warnings("/etc/passwd"), ["the program /etc/passwd is not executable (`chmod +x` makes it so)"]);
    }

    #[test]
    fn a_description_that_names_only_the_program_is_told() {
        let is_told = |description: &str| {
            let warnings = Definition::new("tool", description, vec!["/bin/sh".into()]).warnings();
            assert!(warnings.iter().all(|warning| warning.starts_with("its description says only which program it runs")));
            !warnings.is_empty()
        };
        for description in ["", " ", "Runs `/bin/sh`", "Runs sh.", "sh", "Run the \"sh\" command", "Executes the script"] {
            assert!(is_told(description), "{description}");
        }
        for description in ["Shows the weather", "Runs the tests", "Runs sh on a host", "Calls home"] {
            assert!(!is_told(description), "{description}");
        }
    }

    #[test]
    fn it_is_looked_for_where_the_command_will_look() {
        let mut it = Definition::new("tool", "A tool", vec!["sh".into()]);
        it.env.insert("PATH".to_owned(), "/no/such/directory".to_owned());
        assert_eq!(it.warnings().len(), 1);
        it.env.insert("PATH".to_owned(), "/no/such/directory:/bin".to_owned());
        assert_eq!(it.warnings(), [""; 0]);
        it.env.clear();
        it.inherit_env = Inherit::Only(Vec::new());
        assert_eq!(it.warnings(), [""; 0], "the usual places");
        it.input_schema = json!({"type": "object", "properties": {"dir": {"type": "string", "enum": ["/bin", "/sbin"]}}});
        it.env.insert("PATH".to_owned(), "{dir}".to_owned());
        assert_eq!(it.warnings(), [""; 0], "nobody knows before the call");
    }

    #[test]
    fn what_some_clients_refuse_is_told() {
        let mut it = Definition::new("a.tool", "A tool", vec!["cat".into(), "{list}".into()]);
        it.input_schema = json!({"type": "object", "properties": {"list": {"type": "array"}}});
        let warnings = it.warnings();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].starts_with("the name has a '.' in it: "), "{warnings:?}");
        assert!(warnings[1].starts_with("`/properties/list` is an array without `items`: "), "{warnings:?}");
    }

    #[test]
    fn a_script_in_a_file_that_runs_what_it_is_given_is_told() {
        let dir = crate::testing::TempDir::new();
        let write = |name: &str, text: &str| {
            fs::write(dir.0.join(name), text).expect("written");
            fs::set_permissions(dir.0.join(name), fs::Permissions::from_mode(0o755)).expect("a file of ours");
        };
        write("runs.sh", "#!/usr/bin/env bash\nset -e\neval \"$1\"\n");
        write("shows.sh", "#!/bin/sh\ncat \"$1\"\n");
        write("runs.py", "#!/usr/bin/python3\n# eval \"$1\"\neval \"$1\"\n");
        let warnings = |command: &[&str]| {
            let mut it = definition(command.iter().map(|word| Part::from(*word)).collect());
            it.input_schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
            it.cwd.clone_from(&dir.0);
            it.warnings()
        };
        let runs = dir.0.join("runs.sh").display().to_string();
        for command in [&["./runs.sh", "{a}"][..], &[runs.as_str(), "{a}"], &["sh", "runs.sh", "{a}"]] {
            let warnings = warnings(command);
            assert!(warnings.len() == 1 && warnings[0].contains("runs.sh: \"eval \\\"$1\\\"\": so the script runs"), "{warnings:?}");
        }
        for command in [&["./shows.sh", "{a}"][..], &["sh", "shows.sh", "{a}"], &["./runs.py", "{a}"], &["sh", "gone.sh", "{a}"]] {
            assert_eq!(warnings(command), [""; 0], "{command:?}");
        }
    }

    #[test]
    fn statements_on_standard_input_are_told() {
        let mut it = definition(vec!["psql".into(), "db".into()]);
        it.input_schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        it.stdin = Some("{a}".to_owned());
        assert!(it.warnings().iter().any(|warning| warning.starts_with("stdin: whoever calls writes in {a} what psql runs")));
    }

    #[test]
    fn a_relative_program_is_meant_from_where_the_command_runs() {
        let path = OsStr::new("/none");
        assert_eq!(missing("./sh", Path::new("/bin"), path), None);
        assert_eq!(missing("./nope", Path::new("/bin"), path).as_deref(), Some("the program /bin/./nope is not there"));
        assert_eq!(missing("sh", Path::new("/"), OsStr::new("bin")), None, "and so is PATH");
    }
}
