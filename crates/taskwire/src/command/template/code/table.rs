//! The programs that run some of their arguments as code, and how each reads its arguments.
//!
//! Options stand in lists, with a blank between them. An option in no list has no value. After `-` single letters can be joined (`-lc`,
//! `-ne`), and a value can follow its letter directly (`-ecode`), unless the options of a program are whole words. A long option may be
//! abbreviated. A version at the end of a program's name does not count (`python3.12`).

/// How a program reads its arguments.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) names: &'static str,
    /// Options whose value is code.
    pub(super) code: &'static str,
    /// Options whose value is a file that is run instead of code.
    pub(super) file: &'static str,
    /// Options whose value is a file that is run as well.
    pub(super) loads: &'static str,
    /// Options whose value is `name=value`, where some names mean a command ([`is_code_setting`]).
    pub(super) settings: &'static str,
    /// Options whose value is a statement in a language that callers may write, but that can run commands too.
    pub(super) statements: &'static str,
    /// Options that are followed by a command.
    pub(super) runs: &'static str,
    /// Options with any other value.
    pub(super) value: &'static str,
    /// Letters whose value can only follow directly.
    pub(super) glued: &'static str,
    /// Whether options are whole words, with one dash, two or none.
    pub(super) options_are_words: bool,
    /// Whether options end after the code: what follows are arguments of the code.
    pub(super) code_ends_options: bool,
    pub(super) operand_kind: OperandKind,
    /// Whether it takes code from standard input if it gets none elsewhere. Shells and interpreters always do.
    pub(super) reads_stdin: bool,
    /// What to write instead; `{}` stands for the parameter.
    pub(super) advice: &'static str,
}

/// What a program's operands are: arguments that are neither options nor values of options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperandKind {
    /// Nothing that is run.
    Plain,
    /// Code if there was a `-c`, otherwise a script file; then its arguments.
    Shell,
    /// A script file, unless an option had the code; then its arguments.
    Script,
    /// First code, unless an option had it; then anything.
    Code,
    /// Code from this operand on, all joined.
    Joined(usize),
    /// Statements from this operand on.
    Statements(usize),
    /// A command, after so many operands and after variables (`NAME=value`).
    Command(usize),
    /// A command, at a position that only this program knows.
    Anywhere,
    /// The first is a subcommand, which is read like another program of this table.
    Sub(&'static str),
    /// Targets and variables of `make`.
    Targets,
}

const PLAIN: Program = Program {
    names: "",
    code: "",
    file: "",
    loads: "",
    settings: "",
    statements: "",
    runs: "",
    value: "",
    glued: "",
    options_are_words: false,
    code_ends_options: false,
    operand_kind: OperandKind::Plain,
    reads_stdin: false,
    advice: "keep the code in the configuration or in a file, and let it read {} as an argument of its own or from standard input",
};

pub(super) static PROGRAMS: &[Program] = &[
    // Shells.
    Program {
        names: "sh bash dash zsh ksh ash mksh rbash yash csh tcsh",
        value: "--rcfile --init-file --emulate",
        operand_kind: OperandKind::Shell,
        ..PLAIN
    },
    Program {
        names: "fish",
        code: "-c -C --command --init-command",
        value: "-d -D -f --debug --debug-output --features --profile",
        operand_kind: OperandKind::Script,
        ..PLAIN
    },
    Program {
        names: "pwsh powershell",
        file: "-File -file -f",
        options_are_words: true,
        operand_kind: OperandKind::Joined(0),
        reads_stdin: true,
        ..PLAIN
    },
    // Interpreters.
    Program {
        names: "python pypy",
        code: "-c",
        file: "-m",
        value: "-W -X -Q --check-hash-based-pycs",
        code_ends_options: true,
        operand_kind: OperandKind::Script,
        advice: "use sys.argv[1] in the code and give {} as an argument after it",
        ..PLAIN
    },
    Program {
        names: "perl",
        code: "-e -E -M -m -F",
        value: "-I",
        glued: "-i -x",
        operand_kind: OperandKind::Script,
        advice: "use $ARGV[0] in the code and give {} as an argument after it, behind \"--\"",
        ..PLAIN
    },
    Program {
        names: "ruby",
        code: "-e",
        loads: "-r",
        value: "-I -C -E --encoding",
        glued: "-i -x -K",
        operand_kind: OperandKind::Script,
        advice: "use ARGV[0] in the code and give {} as an argument after it, behind \"--\"",
        ..PLAIN
    },
    Program {
        names: "node nodejs bun",
        code: "-e -p -pe --eval --print",
        loads: "-r --require --import --loader --experimental-loader",
        value: "-C --conditions --stack-trace-limit --env-file",
        operand_kind: OperandKind::Script,
        advice: "use process.argv[1] in the code and give {} as an argument after it, behind \"--\"",
        ..PLAIN
    },
    Program {
        names: "deno",
        code: "eval",
        options_are_words: true,
        advice: "use Deno.args[0] in a file of code, and give {} as an argument after it",
        ..PLAIN
    },
    Program {
        names: "php",
        code: "-r -R -B -E --run --process-code --process-begin --process-end",
        file: "-f -F --file --process-file",
        value: "-d -c -z -t -S",
        operand_kind: OperandKind::Script,
        advice: "use $argv[1] in the code and give {} as an argument after it, behind \"--\"",
        ..PLAIN
    },
    Program { names: "lua luajit", code: "-e", loads: "-l", operand_kind: OperandKind::Script, ..PLAIN },
    Program {
        names: "Rscript R julia groovy scala elixir clojure clj crystal osascript ghc guile racket sbcl tclsh",
        code: "-e -E --eval --expr",
        operand_kind: OperandKind::Script,
        ..PLAIN
    },
    Program { names: "expect", code: "-c", loads: "-f", operand_kind: OperandKind::Script, ..PLAIN },
    Program {
        names: "emacs emacsclient",
        code: "--eval -eval --execute -execute -e",
        loads: "-l --load --script -script",
        options_are_words: true,
        ..PLAIN
    },
    Program {
        names: "gdb lldb",
        code: "-ex --ex -ev --eval-command -iex --init-eval-command -o --one-line",
        loads: "-x --command -s --source",
        options_are_words: true,
        ..PLAIN
    },
    Program { names: "vim vi nvim gvim ex view vimdiff", code: "-c --cmd +", loads: "-S -s -u", ..PLAIN },
    Program { names: "ed dc", code: "-e --expression", reads_stdin: true, ..PLAIN },
    Program {
        names: "awk gawk mawk nawk original-awk",
        code: "-e --source",
        file: "-f -E --file --exec",
        loads: "-i -l --include --load",
        value: "-v -F --assign --field-separator",
        operand_kind: OperandKind::Code,
        advice: "put [\"-v\", \"value={}\"] before the program and use `value` in it",
        ..PLAIN
    },
    Program {
        names: "sed gsed",
        code: "-e --expression",
        file: "-f --file",
        value: "-l --line-length",
        glued: "-i",
        operand_kind: OperandKind::Code,
        advice: "sed takes no arguments for its script, so use awk with [\"-v\", \"value={}\"], or a script of your own that reads {} as an argument",
        ..PLAIN
    },
    // Programs that pass their arguments to a shell.
    Program {
        names: "watch",
        value: "-n -q -s --interval --equexit",
        runs: "-x --exec",
        operand_kind: OperandKind::Joined(0),
        advice: "let it run the command without a shell: [\"watch\", \"-x\", …]",
        ..PLAIN
    },
    Program {
        names: "ssh slogin autossh",
        value: "-B -b -c -D -E -e -F -I -i -J -L -l -m -O -P -p -Q -R -S -W -w",
        settings: "-o",
        operand_kind: OperandKind::Joined(1),
        reads_stdin: true,
        advice: "a shell on the other host runs all of it as one text, so let a script there read the value from standard input: stdin = \"{}\"",
        ..PLAIN
    },
    Program { names: "scp sftp", code: "-S", value: "-c -F -i -J -l -P -D -X", settings: "-o", ..PLAIN },
    Program {
        names: "parallel",
        value: "-a -C -d -E -I -i -j -L -l -n -N -P -S -s --arg-file --colsep --delay --delimiter --env --halt --jobs --joblog --load \
                --max-args --memfree --results --retries --sshlogin --timeout --tmpdir",
        operand_kind: OperandKind::Joined(0),
        reads_stdin: true,
        advice: "give {} behind \":::\"",
        ..PLAIN
    },
    Program {
        names: "su",
        code: "-c --command --session-command -s --shell",
        value: "-g -G -w --group --supp-group --whitelist-environment",
        reads_stdin: true,
        ..PLAIN
    },
    Program {
        names: "runuser",
        code: "-c --command --session-command -s --shell",
        value: "-u -g -G -w --user --group --supp-group --whitelist-environment",
        operand_kind: OperandKind::Anywhere,
        ..PLAIN
    },
    Program { names: "script", code: "-c --command", value: "-E -T -I -O -B -o -m", ..PLAIN },
    Program { names: "at batch crontab", reads_stdin: true, ..PLAIN },
    Program { names: "nix-shell", code: "--run --command", value: "-p -A -I --packages --attr", ..PLAIN },
    Program { names: "nc ncat netcat", code: "-e -c --exec --sh-exec --lua-exec", value: "-w -p -s -x -X -i -q", ..PLAIN },
    // Programs with options for a command.
    Program { names: "find", runs: "-exec -execdir -ok -okdir", options_are_words: true, ..PLAIN },
    Program { names: "fd fdfind", runs: "-x -X --exec --exec-batch", value: "-d -e -E -t -S -c -j", ..PLAIN },
    Program {
        names: "git",
        value: "-C --git-dir --work-tree --namespace --exec-path --super-prefix",
        settings: "-c --config-env",
        operand_kind: OperandKind::Sub("git/"),
        ..PLAIN
    },
    Program {
        names: "git/",
        code: "foreach --upload-pack --receive-pack --exec --extcmd --open-files-in-pager",
        settings: "--config",
        options_are_words: true,
        ..PLAIN
    },
    Program {
        names: "tar gtar bsdtar",
        code: "-I -F --use-compress-program --checkpoint-action --to-command --rsh-command --rmt-command --info-script --new-volume-script",
        value: "-f -C -T -X -b -g -H -K -L -N -V --file --directory --files-from --exclude-from",
        ..PLAIN
    },
    Program { names: "rsync", code: "-e --rsh --rsync-path", value: "-B -T -f", ..PLAIN },
    Program {
        names: "make gmake",
        code: "-E --eval",
        loads: "-f --file --makefile",
        value: "-C -I -o -W --directory --include-dir --old-file --what-if",
        glued: "-j -l -O",
        operand_kind: OperandKind::Targets,
        ..PLAIN
    },
    Program { names: "psql", statements: "-c --command", loads: "-f --file", value: "-d -h -p -U -v -F -R -P -o -L -T", ..PLAIN },
    Program { names: "mysql mariadb", statements: "-e --execute", value: "-h -P -u -D -S", ..PLAIN },
    Program {
        names: "sqlite duckdb",
        statements: "-cmd -c -s",
        loads: "-init",
        options_are_words: true,
        operand_kind: OperandKind::Statements(1),
        ..PLAIN
    },
    // Programs that run another.
    Program {
        names: "env",
        code: "-S --split-string",
        value: "-u -C --unset --chdir",
        operand_kind: OperandKind::Command(0),
        advice: "write the command out, one argument after the other",
        ..PLAIN
    },
    Program {
        names: "sudo",
        value: "-u -g -h -p -C -r -t -T -U -D -R --user --group --host --prompt --close-from --role --type --command-timeout --other-user \
                --chdir --chroot",
        operand_kind: OperandKind::Command(0),
        ..PLAIN
    },
    Program { names: "doas pkexec", value: "-u -C -a --user", operand_kind: OperandKind::Command(0), ..PLAIN },
    Program { names: "nohup setsid unbuffer valgrind busybox toybox", operand_kind: OperandKind::Command(0), ..PLAIN },
    Program { names: "nice", value: "-n --adjustment", operand_kind: OperandKind::Command(0), ..PLAIN },
    Program { names: "ionice", value: "-c -n -p -P -u --class --classdata", operand_kind: OperandKind::Command(0), ..PLAIN },
    Program { names: "stdbuf", value: "-i -o -e --input --output --error", operand_kind: OperandKind::Command(0), ..PLAIN },
    Program { names: "time", value: "-f -o --format --output", operand_kind: OperandKind::Command(0), ..PLAIN },
    Program { names: "strace ltrace", value: "-e -o -p -s -u -E -a -b -I -O -P -S -X -U", operand_kind: OperandKind::Command(0), ..PLAIN },
    Program {
        names: "numactl",
        value: "-i -N -C -m -p --interleave --cpunodebind --physcpubind --membind --preferred",
        operand_kind: OperandKind::Command(0),
        ..PLAIN
    },
    Program {
        names: "xargs",
        value: "-a -d -E -I -L -n -P -s --arg-file --delimiter --max-lines --max-args --max-procs --max-chars --process-slot-var",
        operand_kind: OperandKind::Command(0),
        ..PLAIN
    },
    Program { names: "timeout", value: "-k -s --kill-after --signal", operand_kind: OperandKind::Command(1), ..PLAIN },
    Program { names: "chroot taskset", operand_kind: OperandKind::Command(1), ..PLAIN },
    Program { names: "chrt", value: "-T -P -D", operand_kind: OperandKind::Command(1), ..PLAIN },
    Program {
        names: "flock",
        code: "-c --command",
        value: "-w -E --wait --timeout --conflict-exit-code",
        operand_kind: OperandKind::Command(1),
        advice: "let it run the command without a shell: [\"flock\", \"FILE\", \"command\", \"{}\"]",
        ..PLAIN
    },
    Program { names: "npx vagrant", code: "-c --call --command", operand_kind: OperandKind::Anywhere, ..PLAIN },
    Program {
        names: "docker podman nerdctl kubectl oc crictl lxc incus multipass systemd-run systemd-nspawn machinectl unshare nsenter setpriv \
                bwrap firejail proot fakeroot faketime ip perf prlimit cpulimit caffeinate conda mamba micromamba poetry uv uvx pipx pdm hatch \
                npm pnpm yarn bundle direnv mise asdf op dotenv xvfb-run dbus-run-session nix flatpak snap",
        operand_kind: OperandKind::Anywhere,
        ..PLAIN
    },
];

/// The value of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OptionValue {
    Code,
    File,
    Load,
    Setting,
    Statement,
    Command,
    Value,
}

impl Program {
    /// The options that have a value, by its kind.
    fn options(&self) -> [(&'static str, OptionValue); 7] {
        [
            (self.code, OptionValue::Code),
            (self.file, OptionValue::File),
            (self.loads, OptionValue::Load),
            (self.settings, OptionValue::Setting),
            (self.statements, OptionValue::Statement),
            (self.runs, OptionValue::Command),
            (self.value, OptionValue::Value),
        ]
    }

    /// The kind of value that an option has; a long option may be abbreviated.
    pub(super) fn option_value(&self, option: &str) -> Option<OptionValue> {
        let is_long = option.len() > 3 && option.starts_with("--");
        let has = |list: &str| list.split_whitespace().any(|one| one == option);
        let may_mean = |list: &str| is_long && list.split_whitespace().any(|one| one.starts_with(option));
        let options = self.options();
        let exact = options.iter().find(|option| has(option.0));
        exact.or_else(|| options.iter().find(|option| may_mean(option.0))).map(|option| option.1)
    }

    /// Whether an option that makes it run something may begin like this.
    pub(super) fn may_run(&self, begin: &str) -> bool {
        let options = self.options();
        options
            .iter()
            .filter(|(_, takes)| *takes != OptionValue::Value)
            .any(|(list, _)| list.split_whitespace().any(|one| one.starts_with(begin)))
    }

    /// Whether such an option may be a single letter.
    pub(super) fn has_letters(&self) -> bool {
        let is_letter = |option: &str| option.len() == 2 && option.starts_with('-');
        let options = self.options();
        options.iter().filter(|(_, takes)| *takes != OptionValue::Value).any(|(list, _)| list.split_whitespace().any(is_letter))
    }

    pub(super) fn is_glued(&self, letter: &str) -> bool {
        self.glued.split_whitespace().any(|one| one == letter)
    }

    pub(super) fn is_shell(&self) -> bool {
        self.operand_kind == OperandKind::Shell || self.names == "fish"
    }

    /// Whether it takes its code from standard input if it gets none elsewhere.
    pub(super) fn takes_code_from_stdin(&self) -> bool {
        self.reads_stdin || matches!(self.operand_kind, OperandKind::Shell | OperandKind::Script)
    }

    /// Whether callers may write what it runs, within limits.
    pub(super) fn takes_statements(&self) -> bool {
        !self.statements.is_empty()
    }
}

/// The index of a program in the table, by its name or its path.
pub(super) fn find(program: &str) -> Option<usize> {
    let name = base_name(program);
    let by = |name: &str| PROGRAMS.iter().position(|program| program.names.split_whitespace().any(|one| one == name));
    by(name).or_else(|| by(name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.')))
}

pub(super) fn base_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// Settings of `git -c` and `ssh -o` that name a command, or a file with commands: how their names begin and how they end.
const SETTINGS_BEGIN: &[&str] = &["alias.", "pager.", "includeif."];
const SETTINGS_END: &[&str] = &[
    "command",
    "cmd",
    "pager",
    "editor",
    "program",
    "helper",
    "external",
    "textconv",
    "fsmonitor",
    "hookspath",
    "gitproxy",
    "askpass",
    ".clean",
    ".smudge",
    ".process",
    ".driver",
    "uploadpack",
    "receivepack",
    "include.path",
    "include",
    "provider",
    "match",
    "xauthlocation",
];

pub(super) fn is_code_setting(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    SETTINGS_BEGIN.iter().any(|begin| name.starts_with(begin)) || SETTINGS_END.iter().any(|end| name.ends_with(end))
}

/// Variables that programs run, or load code from, or search for programs; and how the names of others begin.
const VARIABLES: &str = "BASH_ENV BROWSER CLASSPATH EDITOR ENV GCONV_PATH GIT_ASKPASS GIT_EDITOR GIT_EXTERNAL_DIFF GIT_EXEC_PATH GIT_PAGER \
    GIT_PROXY_COMMAND GIT_SEQUENCE_EDITOR GIT_SSH GIT_SSH_COMMAND JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS _JAVA_OPTIONS LESSCLOSE LESSOPEN \
    LUA_INIT LUA_PATH LUA_CPATH MAKEFLAGS MAKEFILES MANPAGER NODE_OPTIONS NODE_PATH PAGER PATH PERL5DB PERL5LIB PERL5OPT PERLLIB \
    PHP_INI_SCAN_DIR PHPRC PROMPT_COMMAND PS0 PS1 PS2 PS4 PYTHONHOME PYTHONPATH PYTHONSTARTUP R_PROFILE RSYNC_RSH RUBYLIB RUBYOPT \
    RUSTC_WRAPPER SHELL SHELLOPTS BASHOPTS SSH_ASKPASS SVN_SSH TAR_OPTIONS VISUAL VIMINIT ZDOTDIR";
const VARIABLES_BEGIN: &[&str] = &["LD_", "DYLD_", "BASH_FUNC_", "GIT_CONFIG"];

/// Whether programs run what this variable says.
pub(in crate::command) fn is_code_variable(name: &str) -> bool {
    VARIABLES.split_whitespace().any(|one| one == name) || VARIABLES_BEGIN.iter().any(|begin| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_name_stands_there_once_and_each_option_begins_as_options_do() {
        let mut names = BTreeSet::new();
        for program in PROGRAMS {
            assert!(!program.names.is_empty(), "{program:?}");
            for name in program.names.split_whitespace() {
                assert!(names.insert(name), "{name} is there twice");
                let found = find(name).map(|at| PROGRAMS[at].names);
                assert!(found == Some(program.names) || name.contains('/'), "{name}");
            }
            for (list, _) in program.options() {
                let is_option = |one: &str| one.starts_with('-') || one == "+" || program.options_are_words;
                assert!(list.split_whitespace().all(is_option), "{}: {list}", program.names);
            }
            assert!(program.glued.split_whitespace().all(|one| one.len() == 2), "{}", program.names);
            if let OperandKind::Sub(name) = program.operand_kind {
                assert!(PROGRAMS.iter().any(|other| other.names == name), "{name} is read on as nothing");
            }
        }
    }

    #[test]
    fn a_program_is_known_with_a_path_and_with_a_version() {
        let names = |program: &str| find(program).map(|at| PROGRAMS[at].names);
        assert_eq!(names("/usr/bin/python3.12"), names("python"));
        assert_eq!(names("ksh93"), names("sh"));
        assert_eq!(names("sqlite3"), Some("sqlite duckdb"));
        assert_eq!((names("sh.py"), names("grep"), names(""), names("3")), (None, None, None, None));
    }

    #[test]
    fn settings_and_variables_that_are_run_are_known() {
        for name in ["alias.x", "core.sshCommand", "ProxyCommand", "core.pager", "credential.helper", "filter.x.smudge", "pager.log"] {
            assert!(is_code_setting(name), "{name}");
        }
        for name in ["user.name", "user.email", "http.proxy", "core.autocrlf", "StrictHostKeyChecking", "ConnectTimeout", "color.ui"] {
            assert!(!is_code_setting(name), "{name}");
        }
        for name in ["BASH_ENV", "LD_PRELOAD", "GIT_SSH_COMMAND", "PERL5OPT", "PATH", "GIT_CONFIG_VALUE_0"] {
            assert!(is_code_variable(name), "{name}");
        }
        for name in ["LANG", "HOME", "TERM", "FOO", "RENDER_CACHE", "GIT_AUTHOR_NAME", "ENVIRONMENT"] {
            assert!(!is_code_variable(name), "{name}");
        }
    }
}
