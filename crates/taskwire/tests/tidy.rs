//! Rules of this repository that no compiler checks: what the documents name exists, rooms import only what they may, and
//! every decision, manual page and limit is listed or tested.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Lines that a source file may have.
const LINES_MAX: usize = 600;
/// Lines that a file of tests may have.
const TEST_LINES_MAX: usize = 1_000;
/// Documents that name tests, and how many at least: where fewer are found, the search for them has gone wrong.
const DOCUMENTS: [(&str, usize); 3] = [("ARCHITECTURE.md", 12), ("docs/invariants.md", 300), ("docs/spec.md", 20)];
/// Fewer invariants than this, and the search for them has gone wrong.
const INVARIANTS_MIN: usize = 40;
/// The same for the files and functions that `ARCHITECTURE.md` names.
const CODE_NAMES_MIN: usize = 50;
/// Bytes that `ARCHITECTURE.md` may have: it is read as a whole.
const ARCHITECTURE_BYTES_MAX: usize = 20_000;
/// Lines that the README may have.
const README_LINES_MAX: usize = 150;

fn root() -> PathBuf {
    let library = Path::new(env!("CARGO_MANIFEST_DIR"));
    library.parent().and_then(Path::parent).expect("the library is in `crates`").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

/// A file as the documents would call it.
fn name_of(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).unwrap_or_else(|error| panic!("cannot read {}: {error}", dir.display())) {
        paths.push(entry.unwrap_or_else(|error| panic!("cannot read {}: {error}", dir.display())).path());
    }
    paths.sort();
    paths
}

/// Every Rust file in a directory, however deep.
fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for path in entries(dir) {
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// Every Rust file in this directory of every crate that has one.
fn files_in(dir: &str) -> Vec<PathBuf> {
    let dirs = entries(&root().join("crates")).into_iter().map(|path| path.join(dir));
    dirs.filter(|path| path.is_dir()).flat_map(|path| rust_files(&path)).collect()
}

/// The sources of every crate, without their tests and examples.
fn sources() -> Vec<PathBuf> {
    files_in("src")
}

/// A source without the lines that are comments.
fn code(path: &Path) -> String {
    let text = read(path);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    lines.join("\n")
}

/// Fails with everything that was found, not only the first.
#[track_caller]
fn assert_none(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

// What the documents say.

/// The binary and the path of a test, if the text in backticks names one: `it push::name`, `crash name`.
fn reference(span: &str) -> Option<(&str, &str)> {
    let (binary, path) = span.split_once(' ')?;
    let is_path = path.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == ':');
    let is_known = match binary {
        "cli" | "it" | "taskwire" | "taskwire-cli" | "taskwire-core" => path.contains("::"),
        "crash" | "tidy" | "worlds" => path.contains('_'),
        _ => false,
    };
    (is_path && is_known).then_some((binary, path))
}

/// What stands in backticks on a line.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Where a test of this module can be.
fn files_of(binary: &str, modules: &[&str]) -> Vec<PathBuf> {
    let crates = root().join("crates");
    let tests = crates.join("taskwire/tests");
    match binary {
        "it" => vec![tests.join("it").join(modules.join("/")).with_extension("rs")],
        "cli" => vec![crates.join("taskwire-cli/tests/cli").join(modules.join("/")).with_extension("rs")],
        "crash" => rust_files(&tests.join("crash")),
        "tidy" => vec![tests.join("tidy.rs")],
        "worlds" => vec![crates.join("taskwire-sim/tests/worlds.rs")],
        library => {
            let src = crates.join(library).join("src");
            // The longest path that is a file; what follows is a module inside it.
            let stems = (1..=modules.len()).rev().map(|len| src.join(modules[..len].join("/")));
            stems.flat_map(|stem| [stem.with_extension("rs"), stem.join("mod.rs")]).find(|file| file.is_file()).into_iter().collect()
        }
    }
}

/// Whether a source has this test: a function that is marked as one, or one in the list of a suite.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let opening = [format!("fn {name}("), format!("fn {name}<")];
    let is_listed = lines.contains(&name);
    lines.iter().enumerate().any(|(at, &line)| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        let mut attributes = lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
        opening.iter().any(|opening| line.starts_with(opening.as_str()))
            && (is_listed || attributes.any(|line| line.starts_with("#[test") || line.starts_with("#[tokio::test")))
    })
}

#[test]
fn every_test_that_a_document_names_exists() {
    let mut missing = Vec::new();
    for (document, min) in DOCUMENTS {
        let text = read(&root().join(document));
        let mut count = 0;
        for (number, line) in (1..).zip(text.lines()) {
            for (binary, path) in spans(line).filter_map(reference) {
                let parts: Vec<&str> = path.split("::").collect();
                let (name, modules) = parts.split_last().expect("a split has at least one part");
                count += 1;
                if !files_of(binary, modules).iter().any(|file| file.is_file() && has_test(&read(file), name)) {
                    missing.push(format!("{document}:{number}: `{binary} {path}` in: {line}"));
                }
            }
        }
        assert!(count >= min, "only {count} tests were found in {document}");
    }
    assert_none("documents name tests that do not exist", &missing);
}

/// The numbers of the invariants, each with what stands under it.
fn invariants() -> Vec<(String, String)> {
    let text = read(&root().join("docs/invariants.md"));
    let mut found = Vec::new();
    for section in text.split("\n### I").skip(1) {
        let (number, rest) = section.split_once('\n').unwrap_or((section, ""));
        if number.starts_with(|c: char| c.is_ascii_digit()) {
            let body = rest.split("\n#").next().unwrap_or_default();
            found.push((number.trim_end().to_owned(), body.to_owned()));
        }
    }
    assert!(found.len() >= INVARIANTS_MIN, "only {} invariants were found", found.len());
    found
}

#[test]
fn every_invariant_has_a_test() {
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    for (number, text) in invariants() {
        if !text.lines().flat_map(spans).any(|span| reference(span).is_some()) {
            found.push(format!("I{number} names no test"));
        }
        if !seen.insert(number.clone()) {
            found.push(format!("I{number} is there twice"));
        }
    }
    assert_none("docs/invariants.md", &found);
}

#[test]
fn every_invariant_that_is_referred_to_is_written_down() {
    let known: BTreeSet<String> = invariants().into_iter().map(|(number, _)| number).collect();
    let mut found = Vec::new();
    for path in sources() {
        for (at, line) in (1..).zip(read(&path).lines()) {
            for (start, words) in line.match_indices("invariant I") {
                let number: String = line[start + words.len()..].chars().take_while(char::is_ascii_alphanumeric).collect();
                if !known.contains(&number) {
                    found.push(format!("{}:{at}: I{number}", name_of(&path)));
                }
            }
        }
    }
    assert_none("docs/invariants.md does not have these", &found);
}

/// Whether a source defines this: a function, a type, a trait or a constant.
fn defines(source: &str, name: &str) -> bool {
    ["fn", "struct", "enum", "trait", "type", "const"].iter().any(|kind| {
        let opening = format!("{kind} {name}");
        let mut openings = source.match_indices(opening.as_str());
        openings.any(|(at, _)| !source[at + opening.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    })
}

/// `crates/…` is a file or a directory, `crates/….rs::name` something that the file defines, and `::name` the same of the file before.
#[test]
fn every_place_in_the_code_that_the_architecture_names_exists() {
    let text = read(&root().join("ARCHITECTURE.md"));
    let (mut missing, mut count, mut path) = (Vec::new(), 0, PathBuf::new());
    for (number, line) in (1..).zip(text.lines()) {
        for span in spans(line) {
            let (file, name) = span.split_once("::").map_or((span, None), |(file, name)| (file, name.rsplit("::").next()));
            if file.starts_with("crates/") {
                path = root().join(file);
            } else if !file.is_empty() || name.is_none() {
                continue;
            }
            count += 1;
            let exists = match name {
                None => path.exists(),
                Some(name) => path.is_file() && defines(&read(&path), name),
            };
            if !exists {
                missing.push(format!("ARCHITECTURE.md:{number}: `{span}`"));
            }
        }
    }
    assert!(count >= CODE_NAMES_MIN, "only {count} places were found");
    assert_none("ARCHITECTURE.md names what is not there", &missing);
}

#[test]
fn documents_that_are_read_as_a_whole_are_short() {
    let bytes = read(&root().join("ARCHITECTURE.md")).len();
    assert!(bytes <= ARCHITECTURE_BYTES_MAX, "ARCHITECTURE.md has {bytes} bytes: it may have {ARCHITECTURE_BYTES_MAX}");
    let lines = read(&root().join("README.md")).lines().count();
    assert!(lines <= README_LINES_MAX, "README.md has {lines} lines: it may have {README_LINES_MAX}");
}

#[test]
fn every_decision_is_listed() {
    let dir = root().join("docs/decisions");
    let list = read(&dir.join("README.md"));
    let names = entries(&dir).into_iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let missing: Vec<String> = names.filter(|name| name != "README.md" && !list.contains(&format!("({name})"))).collect();
    assert_none("docs/decisions/README.md does not list these", &missing);
}

fn is_separator(line: &str) -> bool {
    line.starts_with('|') && line.chars().all(|c| "|-: ".contains(c))
}

#[test]
fn every_rule_of_the_protocol_says_what_holds_it() {
    let text = read(&root().join("docs/spec.md"));
    let suite = read(&root().join("scripts/conform.sh"));
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let is_header = lines.get(at + 1).is_some_and(|next| is_separator(next));
        if !line.starts_with('|') || is_separator(line) || is_header {
            continue;
        }
        let last = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let is_held = spans(last).any(|span| reference(span).is_some() || span.starts_with("conformance: "));
        if !is_held && !last.contains("not applicable: ") && !last.contains("open: ") {
            found.push(format!("nothing holds: {line}"));
        }
        for scenario in spans(last).filter_map(|span| span.strip_prefix("conformance: ")) {
            if scenario.starts_with("tasks-") && !suite.split_whitespace().any(|word| word == scenario) {
                found.push(format!("scripts/conform.sh does not run {scenario}: {line}"));
            }
        }
    }
    assert_none("rows of docs/spec.md", &found);
}

/// The keys of a table in the configuration reference of the manual.
fn reference_keys(table: &str) -> Vec<String> {
    let page = read(&root().join("docs/manual/configuration.md"));
    let heading = format!("\n## `{table}`\n");
    let (_, rest) = page.split_once(heading.as_str()).unwrap_or_else(|| panic!("the reference has no section {table}"));
    let section = rest.split("\n## ").next().unwrap_or_default();
    section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).map(ToOwned::to_owned).collect()
}

#[test]
fn every_limit_in_the_manual_is_reached_by_a_test() {
    let crates = root().join("crates");
    let mut tests = rust_files(&crates.join("taskwire/tests/it"));
    tests.push(crates.join("taskwire-core/src/task/tests.rs"));
    let texts: Vec<String> = tests.iter().map(|path| read(path)).collect();
    let keys = reference_keys("[limits]");
    assert!(!keys.is_empty(), "the reference has limits");
    let is_named = |key: &str| {
        let (quoted, full) = (format!("\"{key}\""), format!("limits.{key}"));
        texts.iter().any(|text| text.contains(&quoted) || text.contains(&full))
    };
    let unreached: Vec<String> = keys.into_iter().filter(|key| !is_named(key)).collect();
    assert_none("no test names these limits", &unreached);
}

/// Every document in a directory, however deep.
fn documents_in(dir: &Path) -> Vec<PathBuf> {
    let mut documents = Vec::new();
    for path in entries(dir) {
        if path.is_dir() {
            documents.extend(documents_in(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            documents.push(path);
        }
    }
    documents
}

/// The documents of the project.
fn documents() -> Vec<PathBuf> {
    let root = root();
    let mut documents = documents_in(&root.join("docs"));
    documents.extend(entries(&root).into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    documents.extend(["bench/README.md", "interop/README.md"].map(|name| root.join(name)));
    documents
}

/// The lines of a document that are no code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The links of a document, each with the number of its line.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        // Every second part is code.
        let line: String = line.split('`').step_by(2).collect();
        for (at, opening) in line.match_indices("](") {
            let target = line[at + opening.len()..].split(')').next().unwrap_or_default();
            links.push((number, target.to_owned()));
        }
    }
    links
}

/// What a link to a heading of this document can name, as GitHub makes it of the heading.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter_map(|(_, line)| line.strip_prefix('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    let anchor = |heading: &str| heading.to_lowercase().chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect::<String>();
    headings.map(anchor).collect()
}

#[test]
fn links_and_anchors_are_found() {
    let text = "# A `b`: c_d\n[one](x.md) `[no](y.md)` [`two`](#a-b)\n```sh\n# [no](z.md)\n```\n";
    assert_eq!(links(text), [(2, "x.md".to_owned()), (2, "#a-b".to_owned())]);
    assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), ["a-b-c_d"]);
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let mut broken = Vec::new();
    let documents = documents();
    for document in &documents {
        let text = read(document);
        let dir = document.parent().expect("a file is in a directory");
        // What has a colon is an address.
        for (number, link) in links(&text).into_iter().filter(|(_, link)| !link.contains(':')) {
            let (path, anchor) = link.split_once('#').unwrap_or((link.as_str(), ""));
            let target = if path.is_empty() { document.clone() } else { dir.join(path) };
            if !target.exists() || (!anchor.is_empty() && !anchors(&read(&target)).contains(anchor)) {
                broken.push(format!("{}:{number}: {link}", name_of(document)));
            }
        }
    }
    assert!(documents.len() > 20, "only {} documents were found", documents.len());
    assert_none("links that lead nowhere", &broken);
}

#[test]
fn every_page_of_the_manual_is_listed_and_its_rust_is_compiled() {
    let (library, manual) = (read(&root().join("crates/taskwire/src/lib.rs")), root().join("docs/manual"));
    let index = read(&manual.join("README.md"));
    let mut found = Vec::new();
    for page in entries(&manual) {
        let name = page.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name != "README.md" && !index.contains(&format!("]({name})")) {
            found.push(format!("{name} is not in the index"));
        }
        if read(&page).contains("```rust") && !library.contains(&format!("docs/manual/{name}")) {
            found.push(format!("{name} has Rust in it that `lib.rs` does not include"));
        }
    }
    assert_none("pages of the manual", &found);
}

// Who may know whom.

fn first_word(text: &str) -> Option<String> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}

/// The text between a brace and its partner, cut at the commas that are in no other brace.
fn items_of(group: &str) -> Vec<&str> {
    let (mut items, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            '}' => {
                items.push(&group[start..at]);
                return items;
            }
            ',' if depth == 0 => {
                items.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items
}

/// The modules named right after `prefix`, alone or in braces.
fn named_after(code: &str, prefix: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices(prefix) {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        match rest.strip_prefix('{') {
            Some(group) => found.extend(items_of(group).into_iter().filter_map(first_word)),
            None => found.extend(first_word(rest)),
        }
    }
    found
}

/// The rooms of the same crate that a file names.
fn rooms_in(path: &Path) -> BTreeSet<String> {
    let code = code(path);
    let mut rooms = named_after(&code, "crate::");
    rooms.extend(named_after(&code, "super::super::"));
    if path.file_name().is_some_and(|name| name == "mod.rs") {
        rooms.extend(named_after(&code, "super::"));
    }
    rooms
}

#[test]
fn imports_are_found_alone_in_braces_and_in_paths() {
    let code =
        "use crate::{\n    clock::{Clock, Sleep},\n    store,\n};\nuse crate::feed::Feed;\nfn f() { crate::tool::g(taskwire_crate::x()) }";
    let found: Vec<String> = named_after(code, "crate::").into_iter().collect();
    assert_eq!(found, ["clock", "feed", "store", "tool"]);
}

#[test]
fn rooms_know_only_what_they_may() {
    let library = root().join("crates/taskwire/src");
    // What each room may know, whatever else there is.
    let rules: [(&str, &[&str]); 21] = [
        ("audit", &[]),
        ("auth", &["outbound"]),
        ("clock", &[]),
        ("outbound", &[]),
        ("owned_files", &[]),
        ("schema", &[]),
        ("form", &["schema"]),
        ("metrics", &["clock"]),
        ("traces", &["clock", "outbound"]),
        ("wakeup", &["clock", "metrics"]),
        ("store", &["clock", "owned_files"]),
        ("engine", &["audit", "clock", "metrics", "traces", "wakeup", "store"]),
        ("tool", &["clock", "engine", "schema"]),
        ("command", &["clock", "engine", "followup", "owned_files", "schema", "server", "store", "tool"]),
        ("followup", &["clock", "engine", "wakeup", "form", "schema", "store", "tool"]),
        ("config", &["auth", "engine", "traces"]),
        ("protocol", &["audit", "auth", "clock", "config", "engine", "metrics", "traces", "wakeup", "followup", "store", "tool"]),
        ("transport", &["audit", "auth", "clock", "config", "metrics", "protocol"]),
        ("server", &["audit", "auth", "clock", "config", "protocol", "engine", "followup", "store", "tool", "traces", "transport"]),
        ("client", &["clock", "form", "server"]),
        ("testing", &[]),
    ];
    let mut found = Vec::new();
    for path in rust_files(&library) {
        let Some(room) = path.strip_prefix(&library).ok().and_then(|path| path.iter().next()?.to_str()?.split('.').next()) else {
            continue;
        };
        let Some((_, allowed)) = rules.iter().find(|(name, _)| *name == room) else {
            if room != "lib" {
                found.push(format!("{} is in a room without a rule", name_of(&path)));
            }
            continue;
        };
        let rooms = rules.iter().map(|(name, _)| *name).filter(|other| *other != room && *other != "testing" && !allowed.contains(other));
        let known = rooms_in(&path);
        found.extend(rooms.filter(|other| known.contains(*other)).map(|other| format!("{} knows `{other}`", name_of(&path))));
    }
    assert_none("imports in the wrong direction", &found);
}

#[test]
fn the_state_machine_knows_no_wire_but_its_error_codes() {
    let mut found = Vec::new();
    for path in rust_files(&root().join("crates/taskwire-core/src/task")) {
        let code = code(&path);
        let wire: Vec<&str> = code.match_indices("wire::").map(|(at, _)| &code[at..]).collect();
        let is_decide = path.file_name().is_some_and(|name| name == "decide.rs");
        let allowed =
            is_decide && !wire.is_empty() && wire.iter().all(|rest| first_word(&rest["wire::".len()..]).as_deref() == Some("code"));
        if (!wire.is_empty() || rooms_in(&path).contains("wire")) && !allowed {
            found.push(name_of(&path));
        }
    }
    assert_none("these know more of the wire than `code`", &found);
}

#[test]
fn the_core_touches_nothing_outside() {
    let core = root().join("crates/taskwire-core");
    let manifest = read(&core.join("Cargo.toml"));
    let dependencies: BTreeSet<&str> = manifest.lines().filter_map(|line| line.split(['.', ' ', '=']).next()).collect();
    let mut found: Vec<String> = ["async-std", "getrandom", "hyper", "rand", "rusqlite", "tokio"]
        .into_iter()
        .filter(|name| dependencies.contains(name))
        .map(|name| format!("Cargo.toml depends on {name}"))
        .collect();
    let outside = ["std::env", "std::fs", "std::io", "std::net", "std::process", "std::thread", "::now()", "async fn"];
    for path in rust_files(&core.join("src")) {
        let code = code(&path);
        found.extend(outside.into_iter().filter(|word| code.contains(word)).map(|word| format!("{} uses {word}", name_of(&path))));
    }
    assert_none("taskwire-core is pure", &found);
}

// What every file has, and what none has.

#[test]
fn every_source_file_begins_by_saying_what_it_is_for() {
    let silent: Vec<String> = sources().iter().filter(|path| !read(path).starts_with("//!")).map(|path| name_of(path)).collect();
    assert_none("these do not begin with `//!`", &silent);
}

/// Those of these files that have more lines than they may, and how many they have.
fn longer_than(max: usize, files: &[PathBuf]) -> Vec<String> {
    let counted = files.iter().map(|path| (path, read(path).lines().count()));
    counted.filter(|(_, count)| *count > max).map(|(path, count)| format!("{} has {count} lines", name_of(path))).collect()
}

#[test]
fn files_are_short() {
    let is_test = |path: &PathBuf| path.file_name().is_some_and(|name| name == "tests.rs" || name == "suite.rs");
    let (mut tests, sources): (Vec<_>, Vec<_>) = sources().into_iter().partition(is_test);
    tests.extend(files_in("tests"));
    assert!(!tests.is_empty() && !sources.is_empty(), "there are tests and sources");
    assert_none(&format!("a source file has at most {LINES_MAX} lines"), &longer_than(LINES_MAX, &sources));
    assert_none(&format!("a file of tests has at most {TEST_LINES_MAX} lines"), &longer_than(TEST_LINES_MAX, &tests));
}

/// The module that a file is, and the file that must declare it.
fn module_of(path: &Path) -> Option<(&str, PathBuf)> {
    let (dir, name) = match path.file_stem()?.to_str()? {
        "mod" => (path.parent()?.parent()?, path.parent()?.file_name()?.to_str()?),
        stem => (path.parent()?, stem),
    };
    let above = [dir.join("main.rs"), dir.join("mod.rs"), dir.with_extension("rs")];
    Some((name, above.into_iter().find(|file| file.is_file())?))
}

#[test]
fn no_test_file_is_forgotten() {
    let mut forgotten = Vec::new();
    for binary in ["taskwire/tests/it", "taskwire/tests/crash", "taskwire-cli/tests/cli"] {
        for path in rust_files(&root().join("crates").join(binary)).iter().filter(|path| !path.ends_with("main.rs")) {
            let declares = |name: &str, line: &str| line.trim_start_matches("pub(crate) ") == format!("mod {name};");
            let is_declared = module_of(path).is_some_and(|(name, above)| read(&above).lines().any(|line| declares(name, line)));
            if !is_declared {
                forgotten.push(name_of(path));
            }
        }
    }
    assert_none("no file above declares these modules", &forgotten);
}

/// A test that is left out where nobody has installed PostgreSQL.
const NEEDS_POSTGRES: &str = concat!("#[", "ignore = \"needs PostgreSQL\"]");

#[test]
fn nothing_is_left_undone() {
    // Written in two parts, so that this file does not find itself.
    let marks = [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!("), concat!("#[", "ignore")];
    let mut found = Vec::new();
    for path in rust_files(&root().join("crates")) {
        for (number, line) in (1..).zip(read(&path).lines()) {
            // The test command runs these too, with the servers that it installs.
            let line = line.replace(NEEDS_POSTGRES, "");
            found.extend(marks.iter().filter(|mark| line.contains(**mark)).map(|mark| format!("{}:{number}: {mark}", name_of(&path))));
        }
    }
    assert_none("left undone", &found);
}

#[test]
fn integration_tests_never_sleep() {
    let mut found = Vec::new();
    for path in rust_files(&root().join("crates/taskwire/tests/it")) {
        for (number, line) in (1..).zip(read(&path).lines()) {
            if line.contains("sleep(") && !line.contains("ctx.sleep") {
                found.push(format!("{}:{number}: {}", name_of(&path), line.trim()));
            }
        }
    }
    assert_none("wait for what happens, not for time", &found);
}
