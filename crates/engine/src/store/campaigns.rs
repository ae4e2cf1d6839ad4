//! Campaigns and their tasks: what was planned, how far each task is, and which runs are its own.
//!
//! INVARIANT: a task is `running` before its first run has a row, and a run names its task from its
//! first row on. What was under way when a process died follows from these two alone.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use ringfence_model::ByteText;
use ringfence_model::bundle::Base;
use ringfence_model::campaign::{Figures, TaskState};
use ringfence_model::plan::Budget;
use ringfence_model::split::When;
use ringfence_model::task::{Brief, Task};
use rusqlite::{OptionalExtension as _, Row, Transaction, params};
use serde::{Deserialize, Serialize};

use super::runs::{bad_column, decode, from_json, is_unique_violation, json, select_runs};
use super::{RunRecord, Store, StoreError};
use crate::clock::now_us;
use crate::ids::{CampaignId, RunId};

/// All that the store knows of a campaign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CampaignRecord {
    pub id: CampaignId,
    pub name: String,
    pub folder: PathBuf,
    /// The text of the plan.
    #[serde(skip)]
    pub plan: String,
    pub base: Base,
    #[serde(skip)]
    pub brief: Brief,
    pub settings: Settings,
    pub created_us: i64,
    /// How long it was worked on, all sittings together.
    pub driven_ms: u64,
    /// Somebody asks whoever drives it to stop.
    pub stop_asked: bool,
}

/// How a campaign is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel: Option<u32>,
    pub budget: Budget,
}

/// One of its tasks, without the document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskRecord {
    #[serde(rename = "id")]
    pub task: String,
    /// From 1, in the order in which they are begun.
    pub number: u32,
    pub when: When,
    pub state: TaskState,
    /// How often it was begun anew because somebody wanted it so.
    pub turn: u32,
    /// How often a run of it was begun in this turn, or tried to.
    pub tries: u32,
    /// The run that counts.
    pub run: Option<RunId>,
    pub why: Option<String>,
    /// How many files are its own.
    pub files: u64,
    /// The first of them.
    #[serde(rename = "first_file")]
    pub first: ByteText,
    pub figures: Figures,
    /// Of the contents of its files when it was planned.
    #[serde(skip)]
    pub seen: String,
}

impl TaskRecord {
    /// How many files it has beside its first one, as ` +9`.
    pub fn more_files(&self) -> String {
        match self.files {
            0 | 1 => String::new(),
            files => format!(" +{}", files - 1),
        }
    }

    /// Its state for a person. Where nothing was asked of it, passing means little.
    pub fn verdict(&self) -> &'static str {
        match (self.state, self.figures.checks) {
            (TaskState::Passed, 0) => "passed, not checked",
            (state, _) => state.words(),
        }
    }
}

/// A task that comes into the store.
#[derive(Clone, Debug)]
pub struct NewTask {
    pub document: Task,
    /// Of the contents of its files.
    pub seen: String,
}

const CAMPAIGNS: &str = "SELECT id, name, folder, plan, base, brief, settings, created_us,
    driven_ms, stop_us IS NOT NULL FROM campaigns";
const TASKS: &str =
    "SELECT task, number, occasion, state, turn, tries, run, why, files, figures, seen,
    json_extract(document, '$.files[0]') FROM campaign_tasks WHERE campaign = ?1 ORDER BY number, task";
const OWN_RUNS: &str =
    select_runs!("WHERE json_extract(detail, '$.campaign.id') = ?1 ORDER BY created_us, id");

impl Store {
    /// Records a campaign with all its tasks, or nothing. It is on the disk when this returns.
    pub fn insert_campaign(
        &self,
        record: &CampaignRecord,
        tasks: &[NewTask],
    ) -> Result<(), StoreError> {
        let insert = || -> Result<(), rusqlite::Error> {
            let transaction = self.acknowledgement()?.unchecked_transaction()?;
            transaction.execute(
                "INSERT INTO campaigns (id, name, folder, plan, base, brief, settings, created_us,
                     driven_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                params![
                    record.id,
                    record.name,
                    record.folder.as_os_str().as_bytes(),
                    record.plan,
                    json(&record.base),
                    json(&record.brief),
                    json(record.settings),
                    record.created_us,
                    record.driven_ms.cast_signed(),
                ],
            )?;
            for task in tasks {
                put_task(&transaction, record.id, task)?;
            }
            transaction.commit()
        };
        insert().map_err(|e| {
            if is_unique_violation(&e) {
                StoreError::CampaignTaken {
                    name: record.name.clone(),
                }
            } else {
                self.campaign_failed("record", &record.name, e)
            }
        })
    }

    /// Puts a plan that was edited in the place of the old one: tasks that are given are recorded
    /// anew, and wait; `gone` are dropped; all else stays as it is.
    pub fn replan_campaign(
        &self,
        record: &CampaignRecord,
        tasks: &[NewTask],
        numbers: &[(String, u32)],
        gone: &[String],
    ) -> Result<(), StoreError> {
        let write = || -> Result<(), rusqlite::Error> {
            let transaction = self.acknowledgement()?.unchecked_transaction()?;
            transaction.execute(
                "UPDATE campaigns SET plan = ?2, base = ?3, brief = ?4, settings = ?5 WHERE id = ?1",
                params![
                    record.id,
                    record.plan,
                    json(&record.base),
                    json(&record.brief),
                    json(record.settings),
                ],
            )?;
            for task in gone {
                transaction.execute(
                    "UPDATE campaign_tasks SET state = 'dropped', updated_us = ?3 WHERE campaign = ?1 AND task = ?2",
                    params![record.id, task, now_us()],
                )?;
            }
            for task in tasks {
                put_task(&transaction, record.id, task)?;
            }
            for (task, number) in numbers {
                transaction.execute(
                    "UPDATE campaign_tasks SET number = ?3 WHERE campaign = ?1 AND task = ?2",
                    params![record.id, task, number],
                )?;
            }
            transaction.commit()
        };
        write().map_err(|e| self.campaign_failed("change the plan of", &record.name, e))
    }

    /// The campaign of a name.
    pub fn campaign(&self, name: &str) -> Result<CampaignRecord, StoreError> {
        let read = || {
            let sql = format!("{CAMPAIGNS} WHERE name = ?1");
            let mut select = self.connection.prepare_cached(&sql)?;
            select.query_row([name], campaign).optional()
        };
        let found = read().map_err(|e| self.campaign_failed("read", name, e))?;
        found.ok_or_else(|| StoreError::NoCampaign {
            name: name.to_owned(),
        })
    }

    /// All of them, the newest first.
    pub fn campaigns(&self) -> Result<Vec<CampaignRecord>, StoreError> {
        let read = || -> Result<Vec<CampaignRecord>, rusqlite::Error> {
            let sql = format!("{CAMPAIGNS} ORDER BY created_us DESC, id");
            let mut select = self.connection.prepare_cached(&sql)?;
            select.query_map([], campaign)?.collect()
        };
        read().map_err(|e| self.campaign_failed("list", "all", e))
    }

    /// The tasks of a campaign, in their order.
    pub fn campaign_tasks(&self, id: CampaignId) -> Result<Vec<TaskRecord>, StoreError> {
        let read = || -> Result<Vec<TaskRecord>, rusqlite::Error> {
            let mut select = self.connection.prepare_cached(TASKS)?;
            select.query_map([id], task)?.collect()
        };
        read().map_err(|e| self.campaign_failed("read the tasks of", id.as_str(), e))
    }

    /// The document of a task.
    pub fn task_document(&self, campaign: &CampaignRecord, task: &str) -> Result<Task, StoreError> {
        let read = || -> Result<Task, rusqlite::Error> {
            let sql = "SELECT document FROM campaign_tasks WHERE campaign = ?1 AND task = ?2";
            let mut select = self.connection.prepare_cached(sql)?;
            let mut task: Task =
                select.query_row(params![campaign.id, task], |row| from_json(row, 0))?;
            task.brief.text.clone_from(&campaign.brief.text);
            Ok(task)
        };
        read().map_err(|e| self.campaign_failed("read a task of", &campaign.name, e))
    }

    /// The runs of a campaign, the oldest first.
    pub fn campaign_runs(&self, id: CampaignId) -> Result<Vec<RunRecord>, StoreError> {
        let read = || -> Result<Vec<RunRecord>, rusqlite::Error> {
            let mut select = self.connection.prepare_cached(OWN_RUNS)?;
            select.query_map([id], decode)?.collect()
        };
        read().map_err(|e| self.campaign_failed("read the runs of", id.as_str(), e))
    }

    /// Records that a task is about to run.
    pub fn begin_task(
        &self,
        id: CampaignId,
        task: &str,
        turn: u32,
        tries: u32,
    ) -> Result<(), StoreError> {
        let update = || {
            self.intent()?
                .prepare_cached(
                    "UPDATE campaign_tasks SET state = 'running', turn = ?3, tries = ?4,
                         run = NULL, why = NULL, figures = '{}', updated_us = ?5
                     WHERE campaign = ?1 AND task = ?2",
                )?
                .execute(params![id, task, turn, tries, now_us()])
        };
        let rows = update().map_err(|e| self.campaign_failed("begin a task of", id.as_str(), e))?;
        self.only_task(rows, task)
    }

    /// Records what came of a task. It is on the disk when this returns.
    pub fn end_task(&self, id: CampaignId, end: &TaskRecord) -> Result<(), StoreError> {
        let update = || {
            self.acknowledgement()?
                .prepare_cached(
                    "UPDATE campaign_tasks SET state = ?3, turn = ?4, tries = ?5, run = ?6,
                         why = ?7, figures = ?8, updated_us = ?9 WHERE campaign = ?1 AND task = ?2",
                )?
                .execute(params![
                    id,
                    end.task,
                    end.state.as_str(),
                    end.turn,
                    end.tries,
                    end.run,
                    end.why,
                    json(&end.figures),
                    now_us(),
                ])
        };
        let rows = update().map_err(|e| self.campaign_failed("end a task of", id.as_str(), e))?;
        self.only_task(rows, &end.task)
    }

    /// Adds to the time that a campaign was worked on.
    pub fn drove_campaign(&self, id: CampaignId, more_ms: u64) -> Result<(), StoreError> {
        let update = || {
            self.intent()?
                .prepare_cached("UPDATE campaigns SET driven_ms = driven_ms + ?2 WHERE id = ?1")?
                .execute(params![id, more_ms.cast_signed()])
        };
        update().map_err(|e| self.campaign_failed("count the time of", id.as_str(), e))?;
        Ok(())
    }

    /// Records how a campaign is run from now on, and that nobody wants it stopped.
    pub fn take_up_campaign(&self, id: CampaignId, settings: Settings) -> Result<(), StoreError> {
        let update = || {
            self.acknowledgement()?
                .prepare_cached("UPDATE campaigns SET settings = ?2, stop_us = NULL WHERE id = ?1")?
                .execute(params![id, json(settings)])
        };
        update().map_err(|e| self.campaign_failed("take up", id.as_str(), e))?;
        Ok(())
    }

    /// When a task of it ended last, and the time that it was worked on was recorded.
    pub fn campaign_counted_us(&self, id: CampaignId) -> Result<Option<i64>, StoreError> {
        let read = || {
            self.connection
                .prepare_cached(
                    "SELECT max(updated_us) FROM campaign_tasks
                     WHERE campaign = ?1 AND state NOT IN ('waiting', 'running')",
                )?
                .query_row([id], |row| row.get(0))
        };
        read().map_err(|e| self.campaign_failed("read the tasks of", id.as_str(), e))
    }

    /// Asks whoever drives a campaign to stop.
    pub fn ask_campaign_to_stop(&self, id: CampaignId) -> Result<(), StoreError> {
        let update = || {
            self.acknowledgement()?
                .prepare_cached("UPDATE campaigns SET stop_us = ?2 WHERE id = ?1")?
                .execute(params![id, now_us()])
        };
        update().map_err(|e| self.campaign_failed("stop", id.as_str(), e))?;
        Ok(())
    }

    /// Whether somebody asks for that.
    pub fn is_campaign_to_stop(&self, id: CampaignId) -> Result<bool, StoreError> {
        let read = || {
            self.connection
                .prepare_cached("SELECT stop_us IS NOT NULL FROM campaigns WHERE id = ?1")?
                .query_row([id], |row| row.get(0))
                .optional()
        };
        let found = read().map_err(|e| self.campaign_failed("read", id.as_str(), e))?;
        // One that was removed under its driver.
        Ok(found.unwrap_or(true))
    }

    /// Forgets a campaign and its tasks, for good when it returns. Its runs stay.
    pub fn remove_campaign(&self, id: CampaignId) -> Result<(), StoreError> {
        let delete = || {
            self.acknowledgement()?
                .prepare_cached("DELETE FROM campaigns WHERE id = ?1")?
                .execute([id])
        };
        delete().map_err(|e| self.campaign_failed("remove", id.as_str(), e))?;
        Ok(())
    }

    fn only_task(&self, rows: usize, task: &str) -> Result<(), StoreError> {
        match rows {
            0 => Err(StoreError::NoTask {
                task: task.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    fn campaign_failed(
        &self,
        what: &'static str,
        name: &str,
        source: rusqlite::Error,
    ) -> StoreError {
        self.failed(source, |source| StoreError::Campaign {
            what,
            name: name.to_owned(),
            source,
        })
    }
}

/// One that is there already is begun anew.
fn put_task(
    transaction: &Transaction<'_>,
    campaign: CampaignId,
    new: &NewTask,
) -> Result<(), rusqlite::Error> {
    let task = &new.document;
    let mut document = task.clone();
    // It is in the row of the campaign: once, and not with each of thousands of tasks.
    document.brief.text = String::new();
    transaction
        .prepare_cached(
            "INSERT INTO campaign_tasks (campaign, task, number, occasion, document, state, turn,
                 tries, files, figures, seen, updated_us)
             VALUES (?1, ?2, ?3, ?4, ?5, 'waiting', 1, 0, ?6, '{}', ?7, ?8)
             ON CONFLICT (campaign, task) DO UPDATE SET document = ?5, state = 'waiting',
                 number = ?3, occasion = ?4, turn = turn + 1, tries = 0, run = NULL, why = NULL,
                 figures = '{}', seen = ?7, updated_us = ?8",
        )?
        .execute(params![
            campaign,
            task.id,
            task.number,
            json(task.when),
            json(&document),
            task.files.len() as i64,
            new.seen,
            now_us(),
        ])?;
    Ok(())
}

fn campaign(row: &Row<'_>) -> Result<CampaignRecord, rusqlite::Error> {
    Ok(CampaignRecord {
        id: row.get(0)?,
        name: row.get(1)?,
        folder: PathBuf::from(OsString::from_vec(row.get(2)?)),
        plan: row.get(3)?,
        base: from_json(row, 4)?,
        brief: from_json(row, 5)?,
        settings: from_json(row, 6)?,
        created_us: row.get(7)?,
        driven_ms: row.get::<_, i64>(8)?.cast_unsigned(),
        stop_asked: row.get(9)?,
    })
}

fn task(row: &Row<'_>) -> Result<TaskRecord, rusqlite::Error> {
    let state: String = row.get(3)?;
    Ok(TaskRecord {
        task: row.get(0)?,
        number: row.get(1)?,
        when: from_json(row, 2)?,
        state: TaskState::parse(&state)
            .ok_or_else(|| bad_column(3, format!("unknown state `{state}`")))?,
        turn: row.get(4)?,
        tries: row.get(5)?,
        run: row.get(6)?,
        why: row.get(7)?,
        files: row.get::<_, i64>(8)?.cast_unsigned(),
        figures: from_json(row, 9)?,
        seen: row.get(10)?,
        first: ByteText::from_text(&row.get::<_, String>(11)?)
            .ok_or_else(|| bad_column(11, "a path that is none".to_owned()))?,
    })
}
