//! How a failure is told: what, why, and what to do next; and the exit code that goes with it.

use std::process::ExitCode;

use anstream::eprintln;
use ringfence_engine::error::Error;
use ringfence_engine::store::StoreError;

use crate::text::clean;

/// HOSTILE: a message may hold what somebody else chose: its lines are seen to be its own.
fn inset(message: &str) -> String {
    clean(message).replace('\n', "\n    ")
}

/// A failure in one line, with what to do next.
pub fn in_short(error: &Error) -> (String, Option<String>) {
    let mut line = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let text = error.to_string();
        // A cause that only says the same again is none.
        if !line.ends_with(&text) {
            line = format!("{line}: {text}");
        }
        cause = error.source();
    }
    (line, error.hint())
}

/// Tells a failure on standard error.
pub fn report(error: anyhow::Error) -> ExitCode {
    // What comes straight from the store is known as well.
    let error = match error.downcast::<StoreError>() {
        Ok(store) => anyhow::Error::new(Error::Store(store)),
        Err(error) => error,
    };
    // A reader that went away is no failure of ours.
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    if causes.any(|io| io.kind() == std::io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {}", inset(&error.to_string()));
    for cause in error.chain().skip(1) {
        eprintln!("  because: {}", inset(&cause.to_string()));
    }
    let known = error.downcast_ref::<Error>();
    if let Some(hint) = known.and_then(Error::hint) {
        eprintln!("hint: {hint}");
    }
    ExitCode::from(known.map_or(2, |error| error.kind().exit_code()))
}
