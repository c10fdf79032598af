//! What the query of a request says: its parameters, and which tasks a list is about.

use taskwire_core::{
    CallerId, TaskId,
    task::{Status, Task},
};

use super::ApiError;

/// Tasks of one page: usually, and at most.
const LIMIT: usize = 50;
const LIMIT_MAX: usize = 200;

/// The parameters of a request, decoded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(query: &str) -> Result<Self, ApiError> {
        let decoded = |text: &str| decode(text).ok_or_else(|| ApiError::new(400, format!("`{text}` in the query cannot be decoded")));
        let pair = |pair: &str| -> Result<(String, String), ApiError> {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decoded(key)?, decoded(value)?))
        };
        Ok(Self(query.split('&').filter(|pair| !pair.is_empty()).map(pair).collect::<Result<_, _>>()?))
    }

    /// Refuses parameters that are none of these, or come twice: whoever mistypes one would get too much.
    pub(super) fn takes(&self, known: &[&str]) -> Result<(), ApiError> {
        for (nth, (key, _)) in self.0.iter().enumerate() {
            if !known.contains(&key.as_str()) {
                let known = if known.is_empty() { "none here".to_owned() } else { known.join(", ") };
                return Err(ApiError::new(400, format!("there is no parameter `{key}`: there is {known}")));
            }
            if self.0[..nth].iter().any(|(other, _)| other == key) {
                return Err(ApiError::new(400, format!("the parameter `{key}` comes more than once")));
            }
        }
        Ok(())
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == key).map(|(_, value)| value.as_str())
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, ApiError> {
        let number = |text: &str| text.parse().map_err(|_| ApiError::new(400, format!("`{key}` is a number, not `{text}`")));
        self.get(key).map(number).transpose()
    }
}

/// Text in which `%` stands before the hexadecimal digits of a byte, and `+` for a blank. None if that is not so.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        bytes.push(match first {
            b'+' => b' ',
            b'%' => {
                let (digits, after) = rest.split_at_checked(2)?;
                rest = after;
                let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
                u8::from_str_radix(digits, 16).ok()?
            }
            other => *other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// A status, or all that a task has that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StatusFilter {
    Is(Status),
    Open,
}

/// Which tasks a list has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TaskFilter {
    pub(super) caller: Option<CallerId>,
    tool: Option<String>,
    status: Option<StatusFilter>,
    /// Tasks before this one: where the page before ended.
    pub(super) before: Option<TaskId>,
    pub(super) limit: usize,
}

impl TaskFilter {
    pub(super) fn read(query: &Query) -> Result<Self, ApiError> {
        query.takes(&["caller", "status", "tool", "limit", "cursor"])?;
        let status = |text: &str| match Status::read(text) {
            Some(status) => Ok(StatusFilter::Is(status)),
            None if text == "open" => Ok(StatusFilter::Open),
            None => {
                let known = "open, working, input_required, completed, failed or cancelled";
                Err(ApiError::new(400, format!("`status` is {known}, not `{text}`")))
            }
        };
        let cursor = |text: &str| text.parse().map_err(|_| ApiError::new(400, "`cursor` is what `nextCursor` of another page says"));
        let limit = query.number("limit")?.map_or(LIMIT, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(ApiError::new(400, format!("`limit` is between 1 and {LIMIT_MAX}")));
        }
        Ok(Self {
            caller: query.get("caller").map(CallerId::new),
            tool: query.get("tool").map(ToOwned::to_owned),
            status: query.get("status").map(status).transpose()?,
            before: query.get("cursor").map(cursor).transpose()?,
            limit,
        })
    }

    /// Whether only tasks that have not ended can fit.
    pub(super) fn is_for_open(&self) -> bool {
        match self.status {
            Some(StatusFilter::Is(status)) => !status.is_terminal(),
            Some(StatusFilter::Open) => true,
            None => false,
        }
    }

    pub(super) fn fits(&self, task: &Task) -> bool {
        let status = match self.status {
            None => true,
            Some(StatusFilter::Is(status)) => task.status() == status,
            Some(StatusFilter::Open) => task.ended.is_none(),
        };
        status
            && self.caller.as_ref().is_none_or(|caller| *caller == task.spec.caller)
            && self.tool.as_deref().is_none_or(|tool| *tool == *task.spec.tool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(query: &str) -> Result<TaskFilter, u16> {
        Query::parse(query).and_then(|query| TaskFilter::read(&query)).map_err(|error| error.status)
    }

    #[test]
    fn a_query_says_which_tasks_are_wanted() {
        let all = filter("").expect("nothing in particular");
        assert_eq!((all.limit, all.is_for_open()), (LIMIT, false));
        let some = filter("caller=https%3A%2F%2Fidp%23ada&tool=a+b&status=open&limit=7").expect("a filter");
        assert_eq!(some.caller, Some(CallerId::new("https://idp#ada")));
        assert_eq!((some.tool.as_deref(), some.limit, some.is_for_open()), (Some("a b"), 7, true));
        assert!(filter("status=input_required").expect("a filter").is_for_open());
        assert!(!filter("status=failed").expect("a filter").is_for_open());
        for bad in
            ["status=done", "limit=0", "limit=201", "limit=x", "cursor=x", "calller=a", "tool=a&tool=b", "tool=%4", "tool=%zz", "tool=%ff"]
        {
            assert_eq!(filter(bad), Err(400), "{bad}");
        }
    }

    #[test]
    fn what_is_written_with_digits_is_the_byte_that_they_name() {
        assert_eq!(decode("a%20b+c%2b%C3%a9").as_deref(), Some("a b c+é"));
        for bad in ["%", "%2", "%+1", "%é", "%ff"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
