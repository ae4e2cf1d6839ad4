//! The direct tools: read, write, edit, patch, list, search on the files of a sandbox.
//!
//! They run inside, as the agent, by the program that is shown there read-only: what they can reach
//! is what the agent can reach. Here the request is sent in and one bounded answer is read back.

use ringfence_model::ByteText;
use ringfence_model::tools::{Answer, MAX_REQUEST, MAX_RESPONSE, PROGRAM, ToolFailure, Verb};
use ringfence_model::wire::{Exec, Leftovers, Notice, OutputMode, Reply, Request, Stdin};
use serde_json::Value;

use super::exec::{Beside, turn};
use super::open::{Lost, open_line};
use super::{Host, room};
use crate::attend::Channel as _;
use crate::client::{ClientError, Message, Stream};
use crate::error::Error;
use crate::ids::SandboxId;
use crate::keeper::{INSIDE, Line};

/// BOUND: a search of a large repository.
const WITHIN_MS: u64 = 30_000;

/// What came of a tool.
#[derive(Debug)]
pub enum Used {
    Answer(Value),
    Failed(ToolFailure),
}

/// Uses a tool. Those that change files do so one at a time; `tell` is called where one has to wait.
pub fn tool(
    host: &Host,
    id: SandboxId,
    verb: Verb,
    request: &Value,
    lost: Lost,
    tell: &mut dyn FnMut(&str),
) -> Result<Used, Error> {
    let json = serde_json::to_vec(request).expect("a value always serialises");
    if json.len() > MAX_REQUEST {
        return Err(Error::ToolRequestTooLarge { most: MAX_REQUEST });
    }
    let beside = if verb.changes() {
        Beside::Wait
    } else {
        Beside::Share
    };
    let _turn = turn(host, id, beside, tell)?;
    let mut opened = open_line(host, id, lost, None)?;
    if verb.changes() && verb != Verb::Remove {
        room::refuse_over(host, &opened.record, 1)?;
    }
    let text = capture(&mut opened.line, verb, &json)?;
    host.store.touch_sandbox(id)?;
    match serde_json::from_slice(&text) {
        Ok(Answer::Ok(value)) => Ok(Used::Answer(value)),
        Ok(Answer::Error(failure)) => Ok(Used::Failed(failure)),
        Err(source) => Err(Error::ToolAnswer {
            verb: verb.name(),
            source,
        }),
    }
}

/// HOSTILE: the agent may have ended what runs; only what ended by itself is believed, and its
/// output is bounded and parsed.
fn capture(line: &mut Line, verb: Verb, request: &[u8]) -> Result<Vec<u8>, Error> {
    let exec = Exec {
        argv: [PROGRAM, INSIDE, verb.name()].map(ByteText::from).to_vec(),
        env: crate::run::environment(&[]),
        cwd: ByteText::from(INSIDE),
        stdin: Stdin::Frames,
        terminal: None,
        timeout_ms: Some(WITHIN_MS),
        output: OutputMode::Attached,
        leftovers: Leftovers::Kill,
    };
    let client = line.client();
    let stream = client.send(&Request::Exec(exec))?;
    client.input(stream, request)?;
    client.end_input(stream)?;
    let mut text = Vec::new();
    loop {
        match client.next(None)? {
            Some(Message::Data(number, Stream::Stdout, bytes)) if number == stream => {
                text.extend_from_slice(&bytes);
                if text.len() > MAX_RESPONSE + 1 {
                    return Err(ClientError::OtherAnswer.into());
                }
            }
            Some(Message::Notice(number, Notice::Exited(exited))) if number == stream => {
                return match (exited.not_started, exited.code, exited.signal) {
                    (Some(failure), ..) => Err(ClientError::Failed(failure).into()),
                    // It said all it had to say: done, or why not.
                    (None, Some(0 | 1), None) if exited.bound.is_none() => Ok(text),
                    _ => Err(Error::ToolEnded { verb: verb.name() }),
                };
            }
            Some(Message::Reply(number, Reply::Failed(failure))) if number == stream => {
                return Err(ClientError::Failed(failure).into());
            }
            _ => {}
        }
    }
}
