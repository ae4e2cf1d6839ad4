//! `ringfence events`.

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Args;
use ringfence_engine::ids::{RunId, SandboxId};
use ringfence_engine::store::{EventFilter, EventRecord, Store, StoreError};
use ringfence_model::limits::{QuantityError, parse_duration_seconds};
use serde_json::Value;

use super::open;
use crate::text::{clean, clean_json, time};

/// Tell what happened: runs, their steps, checks of a person, sandboxes, commands in them
///
/// One line for each thing that the store took, in one order for the whole home. The newest hundred
/// thousand are kept.
#[derive(Debug, Args)]
pub struct Events {
    /// Only of this run, sandbox or campaign: id, its beginning, name, or `last` for the newest run
    #[arg(value_name = "ID")]
    of: Option<String>,
    /// How many of the newest
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(u32).range(0..=100_000))]
    lines: u32,
    /// Only those of the last `30s`, `10m`, `2h`, `1d`
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<u64>,
    /// Only those after the one with this number
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    after: i64,
    /// Go on with what happens from now on, until interrupted
    #[arg(short, long)]
    follow: bool,
    /// Print one JSON object in each line
    #[arg(long)]
    json: bool,
}

/// BOUND: how late somebody who follows is told.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// BOUND: events that are read at once.
const AT_ONCE: usize = 1000;

impl Events {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (_, store) = open()?;
        let since_us = self.since.map_or(0, |seconds| {
            let now = jiff::Timestamp::now().as_microsecond();
            now.saturating_sub_unsigned(seconds.saturating_mul(1_000_000))
        });
        let mut filter = match &self.of {
            Some(text) => of(&store, text)?,
            None => EventFilter::default(),
        };
        filter.since_us = since_us;
        filter.after = self.after;
        // What happens from here on is told once, and after what is told of the past.
        let newest = store.last_events(&EventFilter::default(), 1)?;
        let newest = newest.last().map_or(0, |event| event.sequence);
        let mut events = store.last_events(&filter, self.lines as usize)?;
        events.retain(|event| event.sequence <= newest);
        filter.after = newest;
        loop {
            let mut out = io::stdout().lock();
            for event in &events {
                if tell(&mut out, event, self.json).is_err() {
                    // Nobody listens any more.
                    return Ok(ExitCode::SUCCESS);
                }
            }
            if !self.follow {
                return Ok(ExitCode::SUCCESS);
            }
            if out.flush().is_err() || is_gone(&out) {
                return Ok(ExitCode::SUCCESS);
            }
            drop(out);
            if events.len() < AT_ONCE {
                thread::sleep(LOOK_EVERY);
            }
            events = store.events(&filter, AT_ONCE)?;
            filter.after = events.last().map_or(filter.after, |event| event.sequence);
        }
    }
}

/// Whether whoever reads a pipe has gone away: nothing may happen for long that would tell.
fn is_gone(out: &io::StdoutLock<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let mut polled = [PollFd::new(out, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
        && polled[0].revents().contains(PollFlags::ERR)
}

/// What is meant. An id that is whole may be of something that is gone.
fn of(store: &Store, text: &str) -> Result<EventFilter, StoreError> {
    let subject = |id: String| EventFilter {
        subject: Some(id),
        ..EventFilter::default()
    };
    if let Ok(id) = text.parse::<RunId>() {
        return Ok(subject(id.to_string()));
    }
    if let Ok(id) = text.parse::<SandboxId>() {
        return Ok(subject(id.to_string()));
    }
    match store.find(text) {
        Ok(run) => return Ok(subject(run.id.to_string())),
        Err(StoreError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    match store.find_sandbox(text) {
        Ok(sandbox) => return Ok(subject(sandbox.id.to_string())),
        Err(StoreError::NoSandbox { .. }) => {}
        Err(error) => return Err(error),
    }
    match store.campaign(text) {
        Ok(campaign) => Ok(EventFilter {
            campaign: Some((campaign.id, campaign.name)),
            ..EventFilter::default()
        }),
        Err(StoreError::NoCampaign { .. }) => Err(StoreError::NotFound {
            subject: text.to_owned(),
        }),
        Err(error) => Err(error),
    }
}

fn since(text: &str) -> Result<u64, QuantityError> {
    Ok(parse_duration_seconds(text)?.unwrap_or_default())
}

fn tell(out: &mut dyn Write, event: &EventRecord, json: bool) -> io::Result<()> {
    if json {
        let text = serde_json::to_string(event)?;
        return writeln!(out, "{}", clean_json(&text));
    }
    let mut line = format!(
        "{}  {:<12}  {:<18}",
        time(event.time_us),
        clean(&event.subject),
        clean(&event.what)
    );
    for (key, value) in &event.detail {
        let value = match value {
            Value::String(text) => clean(text),
            other => clean(&other.to_string()),
        };
        line.push_str(&format!("  {}={value}", clean(key)));
    }
    writeln!(out, "{}", line.trim_end())
}
