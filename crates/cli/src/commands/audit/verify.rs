//! `ringfence audit verify`.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::ensure;
use clap::Args;
use ringfence_engine::audit::{Followed, Head, Kept, follow};
use ringfence_engine::error::Error;
use serde_json::json;

use super::{found, words};
use crate::text::{clean, clean_json};

/// Check that a journal is as it was written: no byte flipped, no line dropped, added or swapped
///
/// Each line carries the hash of the line before it. The last line is protected by its own hash,
/// the head, which the result of a run and the store have; where no head is known, it is said so.
/// Works without the store on a bundle's directory or a journal from another machine. Exit code 0:
/// whole; 1: not.
#[derive(Debug, Args)]
pub struct Verify {
    /// Id, its beginning, name, or `last`; a lasting sandbox; a bundle's directory; a journal
    #[arg(default_value = "last", value_name = "RUN")]
    run: OsString,
    /// The hash that the last line must have
    #[arg(long, value_name = "SHA256", value_parser = parse_head)]
    head: Option<String>,
    /// Print one JSON object per journal
    #[arg(long)]
    json: bool,
}

fn parse_head(text: &str) -> Result<String, String> {
    let is_hash = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hash {
        Ok(text.to_ascii_lowercase())
    } else {
        Err("a SHA-256 has 64 hexadecimal digits".to_owned())
    }
}

impl Verify {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut found = found(&self.run)?;
        if let Some(hash) = self.head {
            ensure!(
                found.journals.len() == 1,
                "`--head` is the head of one journal, and there are {}",
                found.journals.len()
            );
            found.journals[0].heads.push(Head {
                kept_in: "`--head`",
                hash,
            });
        }
        let mut out = std::io::stdout().lock();
        let mut code = ExitCode::SUCCESS;
        for kept in &found.journals {
            let followed = follow(kept, drop).map_err(Error::from)?;
            if followed.fault.is_some() {
                code = ExitCode::FAILURE;
            }
            let said = if self.json {
                json(kept, &followed)
            } else {
                sentences(kept, &followed)
            };
            writeln!(out, "{said}")?;
        }
        Ok(code)
    }
}

fn json(kept: &Kept, followed: &Followed) -> String {
    let fault = followed.fault.as_ref().map(|fault| {
        json!({
            "line": fault.line(),
            "why": words::fault(fault),
        })
    });
    let heads: Vec<_> = kept
        .heads
        .iter()
        .map(|head| json!({"kept_in": head.kept_in, "head": head.hash}))
        .collect();
    let value = json!({
        "journal": kept.path.to_string_lossy(),
        "execution": kept.execution,
        "whole": followed.fault.is_none(),
        "fault": fault,
        "lines": followed.lines,
        "bytes": followed.bytes,
        "head": followed.head,
        "known_heads": heads,
        "ended": followed.is_ended,
    });
    clean_json(&value.to_string())
}

fn sentences(kept: &Kept, followed: &Followed) -> String {
    let path = clean(&kept.path.display().to_string());
    if let Some(fault) = &followed.fault {
        return format!(
            "NOT WHOLE: {path}\n  {}\n  the chain holds up to line {}",
            words::fault(fault),
            fault.line() - 1
        );
    }
    let lines = words::count(followed.lines, "line");
    let mut said = format!(
        "whole: {path}\n  {lines}, {} bytes, head {}",
        followed.bytes, followed.head
    );
    if kept.heads.is_empty() {
        said.push_str(
            "\n  no head is known for it: a change to what its last line says, or lines cut off its end, would not be seen",
        );
    } else {
        let kept_in: Vec<&str> = kept.heads.iter().map(|head| head.kept_in).collect();
        said.push_str(&format!(
            "\n  the head is the one in {}",
            kept_in.join(", in ")
        ));
    }
    if followed.is_being_written {
        said.push_str("\n  its last line is being written");
    } else if !followed.is_ended {
        said.push_str(
            "\n  it does not say that all is over: what wrote it is running or was lost, or lines were cut off its end",
        );
    }
    said
}
