//! Completes a word of the command line, for the completion scripts of shells. Start reading with [`candidates`].
//!
//! What a word can be comes from the definition of the command line itself: a value is what its placeholder in the help says (`SERVER`,
//! `TOOL`, `TASK`, …). Nothing in here writes anything, asks a person or starts a program, and what would take long is left out.

pub(crate) mod bash_line;
mod files;
mod sources;

use std::collections::BTreeMap;

use clap::{Arg, ArgAction, Command, Parser, ValueHint, builder::StyledStr};

use crate::{client::connection::ConnectionArgs, term::escape};

/// Nobody reads more than that.
const CANDIDATES_MAX: usize = 500;
const HELP_CHARS_MAX: usize = 80;
/// The options by which a server is reached, except the one that asks a person to sign in.
const CONNECTION_OPTIONS: [&str; 3] = ["token", "header", "era"];

// The scripts of the shells that call `taskwire complete`. Other shells use the definition of the command line alone.
pub(crate) const BASH: &str = include_str!("taskwire.bash");
pub(crate) const FISH: &str = include_str!("taskwire.fish");
pub(crate) const ZSH: &str = include_str!("taskwire.zsh");

/// A completion of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) text: String,
    /// What it is, in a few words.
    pub(crate) help: String,
    /// Whether it is complete, so that the next word may begin.
    pub(crate) is_whole: bool,
}

impl Candidate {
    fn whole(text: impl Into<String>, help: &str) -> Self {
        let line = escape::line(help.trim().lines().next().unwrap_or_default());
        Self { text: text.into(), help: line.chars().take(HELP_CHARS_MAX).collect(), is_whole: true }
    }

    /// A completion that must be continued.
    fn part(text: impl Into<String>, help: &str) -> Self {
        Self { is_whole: false, ..Self::whole(text, help) }
    }

    /// The same behind a fixed prefix.
    fn with_prefix(self, beginning: &str) -> Self {
        Self { text: format!("{beginning}{}", self.text), ..self }
    }
}

/// The completions of the last word, the likely ones first. The first word is the program; `root` has been built.
pub(crate) fn candidates(root: &Command, words: &[String]) -> Vec<Candidate> {
    let Some((word, before)) = words.split_last() else { return Vec::new() };
    let mut found = TypedWords::read(root, before.get(1..).unwrap_or_default()).candidates(word);
    // Names come from servers, too: one with control characters cannot be typed anyway.
    found.retain(|candidate| candidate.text.starts_with(word.as_str()) && escape::line(&candidate.text) == candidate.text);
    found.truncate(CANDIDATES_MAX);
    found
}

/// The words before the one that is completed.
struct TypedWords<'a> {
    command: &'a Command,
    /// Values, by the placeholders that the help has for them.
    values: BTreeMap<String, Vec<String>>,
    /// The names of options.
    options: Vec<&'a str>,
    /// Options by which a server is reached, with their values.
    connection_options: Vec<String>,
    /// The position of the next positional value, counted from 1.
    position: usize,
    /// The option whose value may come next, and how many it has.
    open_option: Option<(&'a Arg, usize)>,
    /// Behind `--` nothing is an option.
    after_dashes: bool,
}

impl<'a> TypedWords<'a> {
    fn read(root: &'a Command, words: &[String]) -> Self {
        let mut typed = Self {
            command: root,
            values: BTreeMap::new(),
            options: Vec::new(),
            connection_options: Vec::new(),
            position: 1,
            open_option: None,
            after_dashes: false,
        };
        for word in words {
            typed.take(word);
        }
        typed
    }

    fn take(&mut self, word: &str) {
        let open = self.open_option.take().filter(|(option, _)| !is_dashed(word) || option.is_allow_hyphen_values_set());
        if let Some((option, count)) = open {
            self.note(option, word);
            let is_more = option.get_num_args().is_some_and(|range| count + 1 < range.max_values());
            self.open_option = is_more.then_some((option, count + 1));
        } else if self.after_dashes || !is_dashed(word) {
            self.take_unnamed(word);
        } else if word == "--" {
            self.after_dashes = true;
        } else {
            let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            let Some(option) = self.option(name) else { return };
            self.options.extend(option.get_long());
            match value {
                _ if !option.get_action().takes_values() => {}
                Some(value) => self.note(option, value),
                None => self.open_option = Some((option, 0)),
            }
        }
    }

    fn take_unnamed(&mut self, word: &str) {
        let command = self.command;
        if self.position == 1
            && let Some(inner) = command.find_subcommand(word)
        {
            self.command = inner;
            self.options.clear();
        } else if let Some(arg) = self.positional() {
            self.note(arg, word);
            self.position += usize::from(!is_many(arg));
        }
    }

    fn note(&mut self, arg: &Arg, value: &str) {
        if let Some(name) = placeholder(arg) {
            self.values.entry(name.to_owned()).or_default().push(value.to_owned());
        }
        if let Some(name) = arg.get_long().filter(|name| CONNECTION_OPTIONS.contains(name)) {
            self.connection_options.push(format!("--{name}={value}"));
        }
    }

    /// The option that is called so, `--name` or `-n`.
    fn option(&self, name: &str) -> Option<&'a Arg> {
        let command = self.command;
        command.get_arguments().find(|arg| match name.strip_prefix("--") {
            Some(long) => arg.get_long() == Some(long),
            None => arg.get_short().is_some_and(|short| name.strip_prefix('-') == Some(short.to_string().as_str())),
        })
    }

    /// The next positional value.
    fn positional(&self) -> Option<&'a Arg> {
        let command = self.command;
        command.get_positionals().find(|arg| arg.get_index() == Some(self.position))
    }

    /// The values that were typed for a placeholder.
    fn all(&self, placeholder: &str) -> &[String] {
        self.values.get(placeholder).map(Vec::as_slice).unwrap_or_default()
    }

    fn value(&self, placeholder: &str) -> Option<&str> {
        self.all(placeholder).last().map(String::as_str)
    }

    /// The connection options that were typed.
    fn connection(&self) -> ConnectionArgs {
        #[derive(Parser)]
        #[command(no_binary_name = true)]
        struct ConnectionOnly {
            #[command(flatten)]
            connection: ConnectionArgs,
        }
        ConnectionOnly::try_parse_from(&self.connection_options).map(|reach| reach.connection).unwrap_or_default()
    }

    fn candidates(&self, word: &str) -> Vec<Candidate> {
        if let Some((option, count)) = self.open_option
            && (count == 0 || !word.starts_with('-'))
        {
            return self.values_of(option, word);
        }
        if !self.after_dashes && word.starts_with('-') {
            let Some((name, value)) = word.split_once('=') else { return self.option_names() };
            let Some(option) = self.option(name).filter(|option| option.get_action().takes_values()) else { return Vec::new() };
            return self.values_of(option, value).into_iter().map(|candidate| candidate.with_prefix(&format!("{name}="))).collect();
        }
        let mut found = if self.position == 1 { self.commands() } else { Vec::new() };
        match self.positional() {
            Some(arg) => found.extend(self.values_of(arg, word)),
            // Only options can follow.
            None if found.is_empty() && word.is_empty() && !self.after_dashes => found = self.option_names(),
            None => {}
        }
        found
    }

    fn commands(&self) -> Vec<Candidate> {
        let shown = self.command.get_subcommands().filter(|command| !command.is_hide_set());
        shown.map(|command| Candidate::whole(command.get_name(), &text(command.get_about()))).collect()
    }

    fn option_names(&self) -> Vec<Candidate> {
        let is_left = |name: &str, arg: &Arg| is_many(arg) || !self.options.contains(&name);
        let shown = self.command.get_arguments().filter(|arg| !arg.is_hide_set());
        let named = shown.filter_map(|arg| Some((arg.get_long()?, arg))).filter(|&(name, arg)| is_left(name, arg));
        named.map(|(name, arg)| Candidate::whole(format!("--{name}"), &text(arg.get_help()))).collect()
    }

    fn values_of(&self, arg: &Arg, word: &str) -> Vec<Candidate> {
        let choices = arg.get_possible_values();
        if !choices.is_empty() {
            let shown = choices.iter().filter(|choice| !choice.is_hide_set());
            return shown.map(|choice| Candidate::whole(choice.get_name(), &text(choice.get_help()))).collect();
        }
        match placeholder(arg).unwrap_or_default() {
            "SERVER" => sources::servers(),
            "TOOL" => sources::tools(self),
            "ARGUMENT" => sources::arguments(self, word),
            "TASK" => sources::tasks(self, word),
            "KEY" => sources::questions(self),
            "VALUE" => sources::answers(self, word),
            "DIR" => files::directories(word),
            "FILE" => files::files(word),
            // Values that can be in a file instead.
            "BLOCK" | "JSON" | "JSON|@FILE" => files::files_in_value(word).unwrap_or_default(),
            _ => match arg.get_value_hint() {
                ValueHint::AnyPath | ValueHint::FilePath => files::files(word),
                ValueHint::DirPath => files::directories(word),
                _ => Vec::new(),
            },
        }
    }
}

/// Whether this is an option where one may be. `-` alone is standard input.
fn is_dashed(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-')
}

/// Whether it can be given more than once.
fn is_many(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append) || arg.get_num_args().is_some_and(|range| range.max_values() > 1)
}

/// What the help calls its value.
fn placeholder(arg: &Arg) -> Option<&str> {
    arg.get_value_names()?.first().map(|name| name.as_str())
}

fn text(help: Option<&StyledStr>) -> String {
    help.map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Command {
        let call = Command::new("call").about("Calls").args([
            Arg::new("address").value_name("ADDRESS"),
            Arg::new("json").long("json").action(ArgAction::SetTrue),
            Arg::new("era").long("era").value_parser(["auto", "modern"]),
            Arg::new("header").long("header").action(ArgAction::Append),
            Arg::new("rest").value_parser(["one", "two"]).num_args(1..),
        ]);
        let mut program = Command::new("taskwire").subcommands([call, Command::new("hidden").hide(true)]);
        program.build();
        program
    }

    fn texts(words: &[&str]) -> Vec<String> {
        let words: Vec<String> = std::iter::once("taskwire").chain(words.iter().copied()).map(ToOwned::to_owned).collect();
        candidates(&program(), &words).into_iter().map(|candidate| candidate.text).collect()
    }

    #[test]
    fn commands_options_and_choices_are_completed_where_they_may_stand() {
        for (words, expected) in [
            (&[""] as &[&str], &["call", "help"] as &[&str]),
            (&["c"], &["call"]),
            (&["call", "--"], &["--json", "--era", "--header", "--help"]),
            (&["call", "--json", "--header", "a: b", "--"], &["--era", "--header", "--help"]),
            (&["call", "--era", ""], &["auto", "modern"]),
            (&["call", "--era", "m"], &["modern"]),
            (&["call", "--era=m"], &["--era=modern"]),
            (&["call", "--json=m"], &[]),
            (&["call", "x", ""], &["one", "two"]),
            (&["call", "x", "one", "t"], &["two"]),
            (&["call", "--header", "--json", "x", ""], &["one", "two"]),
            (&["call", "--", "--json", "t"], &["two"]),
            (&["call", "--", "--"], &[]),
            (&["call", "call", "o"], &["one"]),
        ] {
            assert_eq!(texts(words), expected, "{words:?}");
        }
        assert!(candidates(&program(), &[]).is_empty());
    }

    #[test]
    fn options_by_which_a_server_is_reached_are_taken_along() {
        let command = program();
        let words = ["call", "x", "--era", "modern", "--header=A: s3cret"].map(ToOwned::to_owned);
        let typed = TypedWords::read(&command, &words);
        assert_eq!(typed.connection_options, ["--era=modern", "--header=A: s3cret"]);
        assert!(typed.connection().has_server_options(), "they are understood");
        assert_eq!(typed.value("ADDRESS"), Some("x"));
    }

    #[test]
    fn help_is_one_short_line_that_does_nothing() {
        let candidate = Candidate::whole("x", "  first\x1b[2J\nsecond");
        assert_eq!((candidate.help.as_str(), candidate.is_whole), ("first^[[2J", true));
        assert_eq!(Candidate::part("x", &"y".repeat(1000)).help.len(), HELP_CHARS_MAX);
    }
}
