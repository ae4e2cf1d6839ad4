//! How an agent's own report is read: lines of JSON among its output, and where in them the numbers
//! are.
//!
//! HOSTILE: an agent chose every byte. What comes of it is a claim, bounded in size, and is never
//! taken for more.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::policy::document::reader::{Reader, Value};

/// BOUND: bytes of one line that is looked at.
const MAX_LINE: usize = 4 << 20;
/// BOUND: names on the way to a value, and fields that are added to one number.
const MAX_STEPS: usize = 8;
const MAX_FIELDS: usize = 8;
/// BOUND: more tokens than any model was ever asked for, and more money than a run can cost.
const MAX_TOKENS: u64 = 1_000_000_000_000;
const MAX_USD: f64 = 1_000_000.0;
/// BOUND: bytes of a session's name, and of the last words.
const MAX_SESSION: usize = 200;
const MAX_TEXT: usize = 8 << 10;

/// Where the numbers are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// All of them are added.
    pub input_tokens: Vec<Field>,
    pub output_tokens: Vec<Field>,
    pub cost_usd: Vec<Field>,
    pub session: Vec<Field>,
    pub text: Vec<Field>,
    pub counts: Counts,
}

/// What the numbers of one line are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counts {
    /// Those of one part: all are added.
    #[default]
    Parts,
    /// Those of the whole session so far: the last ones of each session count.
    Totals,
}

/// A place in a line of JSON: `usage.input_tokens`, or `TYPE:usage.input_tokens` of lines whose
/// `type` is that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub of: Option<String>,
    pub steps: Vec<String>,
}

/// What an agent says that it used. Nothing of it was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Which agent says so.
    pub agent: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// In millionths of a dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd_micros: Option<u64>,
    /// By which it can go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Its last words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl Usage {
    /// Whether it says nothing at all.
    pub fn is_nothing(&self) -> bool {
        let agent = self.agent.clone();
        *self
            == Self {
                agent,
                ..Self::default()
            }
    }
}

impl Usage {
    /// Takes what one line says, on top of what came before it.
    fn take(&mut self, own: Self, since: &Self) {
        let sum = |own: Option<u64>, since: Option<u64>, most: u64| {
            own.map(|own| since.unwrap_or(0).saturating_add(own).min(most))
        };
        let input = sum(own.input_tokens, since.input_tokens, MAX_TOKENS);
        self.input_tokens = input.or(self.input_tokens);
        let output = sum(own.output_tokens, since.output_tokens, MAX_TOKENS);
        self.output_tokens = output.or(self.output_tokens);
        let most = (MAX_USD * 1e6) as u64;
        let cost = sum(own.cost_usd_micros, since.cost_usd_micros, most);
        self.cost_usd_micros = cost.or(self.cost_usd_micros);
        self.session = own.session.or(self.session.take());
        self.text = own.text.or(self.text.take());
    }
}

impl Report {
    pub(super) fn read_from<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Option<Self> {
        let table = reader.table(value)?;
        let mut report = Self::default();
        let keys = [
            "input_tokens",
            "output_tokens",
            "cost_usd",
            "session",
            "text",
            "counts",
        ];
        for (key, value) in reader.keys(table, &keys) {
            if key == "counts" {
                match reader.string(value) {
                    Some("parts") => report.counts = Counts::Parts,
                    Some("totals") => report.counts = Counts::Totals,
                    _ => reader.wrong(value.span(), "`parts` or `totals` is meant"),
                }
                continue;
            }
            let fields = fields(reader, value);
            match key {
                "input_tokens" => report.input_tokens = fields,
                "output_tokens" => report.output_tokens = fields,
                "cost_usd" => report.cost_usd = fields,
                "session" => report.session = fields,
                _ => report.text = fields,
            }
        }
        Some(report)
    }

    /// What the lines of an output say. Those that are no JSON object say nothing.
    pub fn read(&self, agent: &str, lines: impl Iterator<Item = impl AsRef<[u8]>>) -> Usage {
        let mut usage = Usage {
            agent: agent.to_owned(),
            ..Usage::default()
        };
        // What sessions before this one came to.
        let mut before = usage.clone();
        for line in lines {
            let line = line.as_ref();
            if line.len() > MAX_LINE || !line.trim_ascii_start().starts_with(b"{") {
                continue;
            }
            // HOSTILE: the parser bounds how deep it goes.
            let Ok(json) = serde_json::from_slice::<Json>(line) else {
                continue;
            };
            let mut own = Usage::default();
            self.add(&json, &mut own);
            if own.session.is_some() && own.session != usage.session {
                before = usage.clone();
            }
            let since = match self.counts {
                Counts::Parts => usage.clone(),
                Counts::Totals => before.clone(),
            };
            usage.take(own, &since);
        }
        usage
    }

    fn add(&self, line: &Json, usage: &mut Usage) {
        let tokens = |fields: &[Field], sum: &mut Option<u64>| {
            for value in fields.iter().filter_map(|field| field.find(line)) {
                // More than there can be is as much as there can be: a budget must see it.
                let whole = |count: f64| count >= MAX_TOKENS as f64;
                let count = value.as_u64().or_else(|| {
                    let huge = value.as_f64().filter(|count| whole(*count));
                    huge.map(|_| MAX_TOKENS)
                });
                if let Some(count) = count {
                    *sum = Some(sum.unwrap_or(0).saturating_add(count).min(MAX_TOKENS));
                }
            }
        };
        tokens(&self.input_tokens, &mut usage.input_tokens);
        tokens(&self.output_tokens, &mut usage.output_tokens);
        for value in self.cost_usd.iter().filter_map(|field| field.find(line)) {
            if let Some(cost) = value.as_f64().and_then(micros) {
                let sum = usage.cost_usd_micros.unwrap_or(0).saturating_add(cost);
                usage.cost_usd_micros = Some(sum.min((MAX_USD * 1e6) as u64));
            }
        }
        let last = |fields: &[Field], most: usize, text: &mut Option<String>| {
            let mut found = fields.iter().filter_map(|field| field.find(line)?.as_str());
            if let Some(found) = found.next_back().filter(|found| !found.is_empty()) {
                *text = Some(cut(found, most).to_owned());
            }
        };
        last(&self.session, MAX_SESSION, &mut usage.session);
        last(&self.text, MAX_TEXT, &mut usage.text);
    }
}

/// Millionths, where it is an amount at all.
fn micros(usd: f64) -> Option<u64> {
    let is_amount = usd.is_finite() && usd >= 0.0;
    is_amount.then(|| (usd.min(MAX_USD) * 1e6).round() as u64)
}

fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl Field {
    fn parse(text: &str) -> Result<Self, &'static str> {
        let (of, path) = match text.split_once(':') {
            Some((of, path)) => (Some(of.to_owned()), path),
            None => (None, text),
        };
        let steps: Vec<String> = path.split('.').map(str::to_owned).collect();
        let fine = steps.len() <= MAX_STEPS && steps.iter().all(|step| !step.is_empty());
        if fine && of.as_deref() != Some("") {
            Ok(Self { of, steps })
        } else {
            Err("a place is `name.name`, or `TYPE:name.name`")
        }
    }

    fn find<'j>(&self, line: &'j Json) -> Option<&'j Json> {
        if let Some(of) = &self.of
            && line.get("type").and_then(Json::as_str) != Some(of)
        {
            return None;
        }
        let mut at = line;
        for step in &self.steps {
            at = at.as_object()?.get(step)?;
        }
        Some(at)
    }
}

/// A place, or a list of them.
fn fields<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Vec<Field> {
    let lines = if value.get_ref().is_str() {
        reader.line(value).into_iter().collect()
    } else {
        reader.lines(value, |text| Field::parse(text).map(|_| ()))
    };
    if lines.len() > MAX_FIELDS {
        reader.wrong(value.span(), format!("at most {MAX_FIELDS} places"));
    }
    let mut fields = Vec::new();
    for line in lines {
        fields.extend(reader.keep(value.span(), Field::parse(&line.text)));
    }
    fields
}
