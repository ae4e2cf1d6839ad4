//! Tracing for operators: nothing at all, unless `RINGFENCE_LOG` asks for it.
//!
//! ```text
//! RINGFENCE_LOG         info · ringfence_engine::campaign=debug · info,ringfence_engine::gate=trace
//! RINGFENCE_LOG_FORMAT  text (as if absent) · json: one object a line
//! RINGFENCE_LOG_FILE    a file to append to, in the place of standard error
//! ```
//!
//! It may be lost, and nothing depends on it: facts are in the journal.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

const FILTER: &str = "RINGFENCE_LOG";
const FORMAT: &str = "RINGFENCE_LOG_FORMAT";
const FILE: &str = "RINGFENCE_LOG_FILE";

/// Where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goes {
    /// Where the variables say.
    AsAsked,
    /// To standard error in any case: of a keeper that is the log of its sandbox.
    ToStandardError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Json,
}

/// Begins to trace where somebody asks for it.
pub fn begin(goes: Goes) -> anyhow::Result<()> {
    let Some(wanted) = variable(FILTER)? else {
        return Ok(());
    };
    let filter = filter(&wanted)?;
    let format = format(variable(FORMAT)?.as_deref())?;
    let file = std::env::var_os(FILE).filter(|path| !path.is_empty());
    match file.filter(|_| goes == Goes::AsAsked).map(PathBuf::from) {
        Some(path) => write_to(filter, format, open(&path)?),
        None => write_to(filter, format, io::stderr),
    }
}

/// An empty variable is as good as none.
fn variable(name: &str) -> anyhow::Result<Option<String>> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    let value = value.map(|value| value.into_string()).transpose();
    value.map_err(|_| anyhow!("`{name}` is not text"))
}

/// A word that is neither a level nor a part of this program would silently select nothing.
fn filter(wanted: &str) -> anyhow::Result<EnvFilter> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let wrong = || {
        format!(
            "`{wanted}` in `{FILTER}` is no filter: one is `info`, or `ringfence_engine::campaign=debug`"
        )
    };
    let words: Vec<&str> = wanted.split(',').map(str::trim).collect();
    for word in &words {
        let is_level = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
        let is_ours = word.starts_with("ringfence") || word.contains(['=', '[']);
        if !is_level && !is_ours {
            bail!(wrong());
        }
    }
    let filter = EnvFilter::builder()
        .with_regex(false)
        .parse(words.join(","));
    filter.with_context(wrong)
}

fn format(wanted: Option<&str>) -> anyhow::Result<Format> {
    match wanted {
        None | Some("text") => Ok(Format::Text),
        Some("json") => Ok(Format::Json),
        Some(other) => bail!("`{other}` in `{FORMAT}` is no format: there are `text` and `json`"),
    }
}

/// Names of folders and checks are nobody else's to read.
fn open(path: &Path) -> anyhow::Result<File> {
    let opened = File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path);
    opened.with_context(|| format!("cannot append to `{}` of `{FILE}`", path.display()))
}

fn write_to<W>(filter: EnvFilter, format: Format, writer: W) -> anyhow::Result<()>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // A line that cannot be written is lost, and nobody is disturbed by that.
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(false)
        .log_internal_errors(false);
    let begun = match format {
        Format::Text => lines.try_init(),
        Format::Json => lines.json().with_current_span(false).try_init(),
    };
    begun.map_err(|error| anyhow!("cannot begin to trace: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_selects_nothing_by_mistake_is_wrong() {
        for text in [
            "info",
            "TRACE",
            "off",
            "ringfence_engine::campaign=debug",
            "ringfence_engine::run",
            "warn,ringfence_engine::gate=trace, ringfence_engine::checks=info",
            "[run]=debug",
        ] {
            assert!(filter(text).is_ok(), "{text}");
        }
        for text in [
            "inof",
            "info,campain",
            "ringfence_engine=loud",
            "info,,debug",
            "[run",
            "=",
        ] {
            let told = filter(text).map(|filter| filter.to_string());
            assert!(told.is_err(), "{text}: {told:?}");
        }
    }

    #[test]
    fn there_are_two_formats() {
        for (text, expected) in [
            (None, Some(Format::Text)),
            (Some("text"), Some(Format::Text)),
            (Some("json"), Some(Format::Json)),
            (Some("xml"), None),
        ] {
            assert_eq!(format(text).ok(), expected, "{text:?}");
        }
    }
}
