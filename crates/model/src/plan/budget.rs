//! What a campaign may spend. Nobody's money is spent because a number was misread: what is not
//! plain is refused.

use serde::{Deserialize, Serialize};

use crate::limits::parse_duration_seconds;
use crate::policy::document::reader::{Reader, Value};

/// BOUND: more is no budget but a slip of the hand.
const MAX_DOLLARS: u64 = 10_000_000;
/// Millionths of a dollar.
const MICRO: u64 = 1_000_000;

/// Bounds of a whole campaign; what is absent has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Budget {
    /// How long it is worked on, all sittings together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_seconds: Option<u64>,
    /// How many tasks are begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<u64>,
    /// Where agents report them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Millionths of a dollar, where agents report them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
}

impl Budget {
    /// These bounds, and for those that it does not say the others'.
    pub fn or(self, other: Self) -> Self {
        Self {
            time_seconds: self.time_seconds.or(other.time_seconds),
            tasks: self.tasks.or(other.tasks),
            tokens: self.tokens.or(other.tokens),
            cost_micros: self.cost_micros.or(other.cost_micros),
        }
    }
}

/// Reads dollars: `5`, `0.25`.
pub fn dollars(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no sum of dollars, such as `5` or `0.25`");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let lost = text.ends_with('.') || whole.is_empty();
    if lost || part.len() > 6 || !digits(whole) || !digits(part) {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    if whole > MAX_DOLLARS {
        return Err(format!("at most {MAX_DOLLARS} dollars"));
    }
    let part: u64 = format!("{part:0<6}").parse().map_err(|_| wrong())?;
    Ok(whole * MICRO + part)
}

/// Dollars for a person.
pub fn in_dollars(micros: u64) -> String {
    format!("${}.{:02}", micros / MICRO, micros % MICRO / 10_000)
}

/// Reads a number of tasks or tokens; `1M` is a million.
pub fn number(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no number above 0, such as `40`, `500k` or `2M`");
    let (digits, times) = match text.strip_suffix(['k', 'M']) {
        Some(rest) if text.ends_with('k') => (rest, 1000),
        Some(rest) => (rest, 1_000_000),
        None => (text, 1),
    };
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let read = digits.parse::<u64>().ok().filter(|_| plain);
    let read = read.and_then(|read| read.checked_mul(times));
    read.filter(|read| *read > 0).ok_or_else(wrong)
}

pub(super) fn read<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Budget {
    let mut budget = Budget::default();
    let Some(table) = reader.table(value) else {
        return budget;
    };
    for (key, value) in reader.keys(table, &["time", "tasks", "tokens", "cost"]) {
        match key {
            "time" => {
                budget.time_seconds = reader.quantity(value, parse_duration_seconds).flatten();
            }
            "tasks" => budget.tasks = reader.quantity(value, some(number)).flatten(),
            "tokens" => budget.tokens = reader.quantity(value, some(number)).flatten(),
            _ => {
                let text = match value.get_ref() {
                    toml::de::DeValue::Float(number) => Some(number.as_str().to_owned()),
                    toml::de::DeValue::Integer(number) => Some(number.as_str().to_owned()),
                    _ => reader.string(value).map(|text| text.to_string()),
                };
                let read = text.map(|text| dollars(&text));
                budget.cost_micros = read.and_then(|read| reader.keep(value.span(), read));
            }
        }
    }
    budget
}

fn some(
    read: impl Fn(&str) -> Result<u64, String>,
) -> impl Fn(&str) -> Result<Option<u64>, String> {
    move |text| read(text).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_read_exactly_or_not_at_all() {
        for (text, micros) in [
            ("5", Some(5 * MICRO)),
            ("0.25", Some(250_000)),
            ("0.000001", Some(1)),
            ("0", Some(0)),
            ("", None),
            (".5", None),
            ("5.", None),
            ("-1", None),
            ("+1", None),
            ("1e3", None),
            ("1_000", None),
            ("0.0000001", None),
            ("10000001", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(dollars(text).ok(), micros, "{text}");
        }
        assert_eq!(in_dollars(1_250_000), "$1.25");
    }

    #[test]
    fn numbers_have_no_sign_and_no_fraction() {
        for (text, read) in [
            ("40", Some(40)),
            ("500k", Some(500_000)),
            ("2M", Some(2_000_000)),
            ("0", None),
            ("", None),
            ("k", None),
            ("+4", None),
            ("-4", None),
            ("1.5M", None),
            ("99999999999999999999", None),
            ("18446744073709551615M", None),
        ] {
            assert_eq!(number(text).ok(), read, "{text}");
        }
    }
}
