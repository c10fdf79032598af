//! Where a server is: a URL, a command, or this process.

use std::{fmt, str::FromStr, sync::Arc};

use tokio::io::DuplexStream;

use super::Error;

/// Where a server is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Target {
    /// At a URL: `http://…` or `https://…`.
    Url(String),
    /// A program that the client starts and speaks to on its standard input and output.
    Command(Vec<String>),
    /// In this process.
    InProcess(Arc<dyn Connect>),
}

/// A server in this process; `Server` (feature `server`) is one.
pub trait Connect: fmt::Debug + Send + Sync {
    /// Begins to serve one more client, one message a line, until the stream is dropped. Needs a tokio runtime.
    fn connect(&self) -> DuplexStream;
}

const STDIO: &str = "stdio:";

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(line) = text.strip_prefix(STDIO) {
            let words = words(line).map_err(|reason| Error::Target(format!("`{text}` is no command line: {reason}")))?;
            if words.is_empty() {
                return Err(Error::Target(format!("`{STDIO}` needs a command line, such as `{STDIO}my-server --flag`")));
            }
            return Ok(Self::Command(words));
        }
        match reqwest::Url::parse(text) {
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(Self::Url(text.to_owned())),
            _ => Err(Error::Target(format!("`{text}` is no server: give a URL (http://… or https://…) or `{STDIO}<command line>`"))),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => f.write_str(url),
            Self::Command(words) => {
                f.write_str(STDIO)?;
                for (n, word) in words.iter().enumerate() {
                    f.write_str(if n == 0 { "" } else { " " })?;
                    f.write_str(&quoted(word))?;
                }
                Ok(())
            }
            Self::InProcess(_) => f.write_str("in-process"),
        }
    }
}

/// Splits a command line at blanks, except within quotes or after a backslash. Nothing is expanded.
fn words(line: &str) -> Result<Vec<String>, &'static str> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' => loop {
                match chars.next().ok_or("a `'` is not closed")? {
                    '\'' => {
                        word.get_or_insert_default();
                        break;
                    }
                    c => word.get_or_insert_default().push(c),
                }
            },
            '"' => loop {
                match chars.next().ok_or("a `\"` is not closed")? {
                    '"' => {
                        word.get_or_insert_default();
                        break;
                    }
                    '\\' => match chars.next().ok_or("a `\"` is not closed")? {
                        c @ ('"' | '\\' | '$' | '`') => word.get_or_insert_default().push(c),
                        c => word.get_or_insert_default().extend(['\\', c]),
                    },
                    c => word.get_or_insert_default().push(c),
                }
            },
            '\\' => word.get_or_insert_default().push(chars.next().ok_or("it ends with a `\\`")?),
            c if c.is_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Quotes a word so that [`words`] reads it back.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+~".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_read_like_a_shell_would_and_written_back() {
        let target: Target = r#"stdio:npx -y 'a b' "c \"d\"" e\ f ''"#.parse().expect("a command");
        let Target::Command(words) = &target else { panic!("{target}") };
        assert_eq!(words, &["npx", "-y", "a b", "c \"d\"", "e f", ""]);
        let again: Target = target.to_string().parse().expect("the same");
        assert_eq!(again.to_string(), target.to_string());
        assert_eq!(target.to_string(), r#"stdio:npx -y 'a b' 'c "d"' 'e f' ''"#);
    }

    #[test]
    fn what_is_no_server_is_refused_with_what_would_be_one() {
        for text in ["", "stdio:", "stdio:  ", "stdio:a 'b", "ftp://host/", "localhost:8787", "name", "http://"] {
            let refused = text.parse::<Target>().expect_err(text);
            assert!(matches!(refused, Error::Target(_)), "{text}: {refused}");
        }
        assert!(matches!("https://host/mcp".parse(), Ok(Target::Url(url)) if url == "https://host/mcp"));
    }
}
