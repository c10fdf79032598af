//! Files and directories that a word can become.

use std::path::PathBuf;

use super::Candidate;

/// Entries of a directory that are looked at.
const ENTRIES_MAX: usize = 10_000;

pub(super) fn files(typed: &str) -> Vec<Candidate> {
    entries(typed, false)
}

pub(super) fn directories(typed: &str) -> Vec<Candidate> {
    entries(typed, true)
}

/// Completes the file that stands for a value: `@FILE`, `key@=FILE`, `key:=@FILE`. `None` if the word names no file.
pub(super) fn files_in_value(word: &str) -> Option<Vec<Candidate>> {
    let path = match word.split_once('=') {
        _ if word.starts_with('@') => &word[1..],
        Some((key, path)) if key.len() > 1 && key.ends_with('@') => path,
        Some((key, value)) if key.len() > 1 && key.ends_with(':') => value.strip_prefix('@')?,
        _ => return None,
    };
    let beginning = &word[..word.len() - path.len()];
    Some(files(path).into_iter().map(|candidate| candidate.with_prefix(beginning)).collect())
}

fn entries(typed: &str, only_directories: bool) -> Vec<Candidate> {
    let (beginning, name) = typed.rfind('/').map_or(("", typed), |at| typed.split_at(at + 1));
    let directory = match beginning.strip_prefix("~/") {
        Some(rest) => std::env::home_dir().unwrap_or_default().join(rest),
        None if beginning.is_empty() => PathBuf::from("."),
        None => PathBuf::from(beginning),
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().take(ENTRIES_MAX).flatten() {
        let Ok(file_name) = entry.file_name().into_string() else { continue };
        // Hidden files are for users who type the dot.
        if !file_name.starts_with(name) || (file_name.starts_with('.') && name.is_empty()) {
            continue;
        }
        if entry.path().is_dir() {
            found.push(Candidate::part(format!("{beginning}{file_name}/"), ""));
        } else if !only_directories {
            found.push(Candidate::whole(format!("{beginning}{file_name}"), ""));
        }
    }
    found.sort_by(|a, b| a.text.cmp(&b.text));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(candidates: Vec<Candidate>) -> Vec<String> {
        candidates.into_iter().map(|candidate| candidate.text).collect()
    }

    #[test]
    fn a_path_is_gone_on_with_where_it_was_left() {
        let root = env!("CARGO_MANIFEST_DIR");
        assert_eq!(texts(files(&format!("{root}/Carg"))), [format!("{root}/Cargo.toml")]);
        assert_eq!(texts(files(&format!("{root}/s"))), [format!("{root}/src/")]);
        assert_eq!(texts(directories(&format!("{root}/C"))), Vec::<String>::new());
        assert!(files(&format!("{root}/src/main.r")).iter().all(|candidate| candidate.is_whole));
        assert!(directories(&format!("{root}/sr")).iter().all(|candidate| !candidate.is_whole), "there is more in it");
        assert_eq!(texts(files("/no/such/place/")), Vec::<String>::new());
    }

    #[test]
    fn a_file_can_stand_for_a_value() {
        let root = env!("CARGO_MANIFEST_DIR");
        for beginning in ["@", "text@=", "deep:=@"] {
            assert_eq!(files_in_value(&format!("{beginning}{root}/Carg")).map(texts), Some(vec![format!("{beginning}{root}/Cargo.toml")]));
        }
        for word in ["", "text", "text=", "text=@", "@=x", "=", "deep:=x"] {
            assert!(files_in_value(word).is_none_or(|found| found.is_empty()), "{word}");
        }
    }
}
