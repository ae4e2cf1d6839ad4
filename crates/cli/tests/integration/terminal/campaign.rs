//! A campaign on a real terminal: a table that fits, follows the size, stops on Ctrl-C and is gone
//! at the end.

use anyhow::{Result, ensure};

use super::OnTerminal;
use crate::support::in_each_mode;

#[test]
fn a_campaign_has_a_table_that_fits_and_goes_away() -> Result<()> {
    in_each_mode("table", |env, fixture| {
        env.as_owner(fixture, &fixture.folder, &["mkdir", "work"])?;
        for at in 1..=60 {
            env.put(fixture, &format!("work/{at:02}.txt"), "old\n")?;
        }
        env.put(fixture, "BRIEF.md", "Wait.\n")?;
        let plan = "name = 'many'\nbrief = 'BRIEF.md'\n\
            command = ['sh', '-c', 'grep -q 01.txt && exit 3; sleep 100000']\n\
            [split]\nfiles = 'work/*.txt'\nper_task = 1\n[run]\nparallel = 3\n";
        env.put(fixture, "plan.toml", plan)?;
        let words = ["campaign", "run", "plan.toml"];
        let mut screen = OnTerminal::start(env, fixture, &words)?;
        // What did not pass stays as a line; what runs has a row.
        screen.until("failed")?;
        screen.until("▶ 0002-")?;
        screen.until("1/60")?;
        screen.until("3 running")?;
        screen.resize(40, 5)?;
        // There is no room for all that runs any more.
        screen.until("more under way")?;
        screen.press("\u{3}")?;
        screen.until("nothing more begins")?;
        let (status, seen) = screen.finish_with("go on: ringfence campaign resume many")?;
        ensure!(status.code() == Some(130), "{status}: {seen:?}");
        // The last thing that was drawn is wiped before the last words.
        let table = seen.rfind("▶ 00").unwrap_or(0);
        let wiped = seen.rfind("A\x1b[J").unwrap_or(0);
        let words = seen.rfind("campaign many: stopped").unwrap_or(0);
        ensure!(table < wiped && wiped < words, "{seen:?}");
        Ok(())
    })
}
