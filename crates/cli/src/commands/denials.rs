//! `ringfence denials`.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use ringfence_engine::audit::Story;
use ringfence_engine::denials::{self, Refusal};
use ringfence_engine::error::Error;
use ringfence_engine::policy::HOST_FILE;
use ringfence_model::policy::network::Reason;

use super::audit;
use crate::text::{argument, clean, clean_json};

/// List what was denied, how often, and the line that would allow it
///
/// What the gate refused and what could not be observed, from the journal. The same is said once;
/// many paths of one host are a pattern.
#[derive(Debug, Args)]
pub struct Denials {
    /// Id, its beginning, name, or `last`; a lasting sandbox; a bundle's directory; a journal
    #[arg(default_value = "last", value_name = "RUN")]
    run: OsString,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Denials {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let found = audit::found(&self.run)?;
        let mut stories = Vec::new();
        let mut code = ExitCode::SUCCESS;
        for kept in &found.journals {
            let (story, followed) = Story::read(kept).map_err(Error::from)?;
            if audit::report(kept, &followed) {
                code = ExitCode::FAILURE;
            }
            stories.push(story);
        }
        let denials = denials::Denials::of(stories.iter().map(|story| &story.evidence));
        let mut out = std::io::stdout().lock();
        if self.json {
            writeln!(out, "{}", clean_json(&serde_json::to_string(&denials)?))?;
        } else {
            tell(&mut out, &denials)?;
        }
        Ok(code)
    }
}

fn tell(out: &mut dyn Write, denials: &denials::Denials) -> std::io::Result<()> {
    if denials.is_empty() {
        return writeln!(out, "nothing was denied");
    }
    writeln!(out, "{:>6}  {:<9}  WHAT", "TIMES", "REASON")?;
    for refusal in &denials.network {
        writeln!(
            out,
            "{:>6}  {:<9}  {}",
            refusal.times,
            refusal.reason.as_str(),
            asked(refusal)
        )?;
        if let Some(line) = explanation(refusal) {
            writeln!(out, "                   {line}")?;
        }
    }
    for call in &denials.calls {
        let words = format!("{}: {}", call.operation, call.reason);
        writeln!(out, "{:>6}  {:<9}  {}", call.times, "call", clean(&words))?;
    }
    if denials.more > 0 {
        writeln!(out, "and {} more", denials.more)?;
    }
    let lines = denials.lines();
    if !lines.is_empty() {
        writeln!(
            out,
            "\nto allow these, put what you want of it into `{HOST_FILE}` of ringfence's home, or into \
             the file that you give as `--policy`\n(`ringfence.toml` in the folder can only narrow):\n"
        )?;
        writeln!(out, "[network]\nallow = [")?;
        for line in lines {
            writeln!(out, "    \"{}\",", clean(line))?;
        }
        writeln!(out, "]")?;
    }
    Ok(())
}

fn asked(refusal: &Refusal) -> String {
    let mut asked = match &refusal.method {
        Some(method) => format!("{} ", clean(method)),
        None if refusal.port == 0 => "name ".to_owned(),
        None => "connect ".to_owned(),
    };
    asked.push_str(&argument(&refusal.host));
    if refusal.port != 0 {
        asked.push_str(&format!(":{}", refusal.port));
    }
    if let Some(path) = &refusal.path {
        asked.push_str(&argument(path));
    }
    asked
}

/// What helps where no line of `allow` does.
fn explanation(refusal: &Refusal) -> Option<String> {
    Some(match refusal.reason {
        Reason::Secret => {
            "a secret was sent to where it is not bound; `hosts` in its `[secrets]` table binds it"
                .to_owned()
        }
        Reason::Address => {
            "its address is not of the open network; a rule with `addresses` names it".to_owned()
        }
        Reason::Budget | Reason::Rule | Reason::Protocol | Reason::Malformed => {
            clean(&refusal.detail)
        }
        Reason::Host | Reason::Port | Reason::Method | Reason::Path => return None,
    })
}
