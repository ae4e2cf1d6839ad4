//! `ringfence sandbox fs`: the direct tools on the files of a sandbox.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::process::ExitCode;

use anstream::eprintln;
use clap::{Args, Subcommand};
use ringfence_engine::sandboxes::exec::Lost;
use ringfence_engine::sandboxes::files::{Used, tool};
use ringfence_model::ByteText;
use ringfence_model::tools::{
    Base64, FailureKind, GlobAnswer, ListAnswer, ReadAnswer, SearchAnswer, Verb,
};
use serde_json::{Value, json};

use crate::commands::open_host;
use crate::text::{clean, clean_json};

/// Read, write, edit, patch, list and search files of a sandbox
#[derive(Debug, Args)]
pub struct Fs {
    #[command(subcommand)]
    tool: Tool,
    /// Print the whole answer as one JSON object
    #[arg(long, global = true)]
    json: bool,
    /// Start another execution where the old one is lost
    #[arg(long, global = true)]
    replace: bool,
}

#[derive(Debug, Subcommand)]
enum Tool {
    /// Print a file or a part of it
    Read {
        sandbox: String,
        path: OsString,
        /// First byte
        #[arg(long, conflicts_with = "lines")]
        offset: Option<u64>,
        /// The most bytes
        #[arg(long)]
        length: Option<u64>,
        /// First and last line, e.g. `10:20`
        #[arg(long, value_parser = line_range)]
        lines: Option<[u64; 2]>,
    },
    /// Write standard input to a file, all at once
    Write {
        sandbox: String,
        path: OsString,
        /// Add to its end
        #[arg(long, conflicts_with = "create")]
        append: bool,
        /// Refuse where there is one
        #[arg(long)]
        create: bool,
        /// Make it executable
        #[arg(long)]
        executable: bool,
    },
    /// Replace an exact text
    Edit {
        sandbox: String,
        path: OsString,
        /// The text that is there, once
        #[arg(long, allow_hyphen_values = true)]
        old: String,
        /// The text in its place
        #[arg(long, allow_hyphen_values = true)]
        new: String,
        /// Wherever it is
        #[arg(long)]
        all: bool,
    },
    /// Apply a unified diff from standard input, all or nothing
    Patch {
        sandbox: String,
        /// Check only
        #[arg(long)]
        dry_run: bool,
        /// Leading directories to take off each name
        #[arg(long, default_value_t = 1)]
        strip: usize,
    },
    /// List a directory
    List {
        sandbox: String,
        #[arg(default_value = ".")]
        path: OsString,
        #[arg(long)]
        depth: Option<u32>,
    },
    /// Find files by pattern
    Glob {
        sandbox: String,
        pattern: String,
        /// Ignored files as well
        #[arg(long)]
        ignored: bool,
    },
    /// Find lines by regular expression
    Search {
        sandbox: String,
        #[arg(allow_hyphen_values = true)]
        pattern: String,
        #[arg(default_value = ".")]
        path: OsString,
        /// Plain text, not an expression
        #[arg(short = 'F', long)]
        fixed: bool,
        /// Whatever the case
        #[arg(short = 'i', long)]
        ignore_case: bool,
        /// Whole words only
        #[arg(short = 'w', long)]
        word: bool,
        /// Files to search; with `!` in front, files to leave out
        #[arg(short = 'g', long)]
        glob: Vec<String>,
        /// Lines around each match
        #[arg(short = 'C', long)]
        context: Option<usize>,
        /// How many matches at most
        #[arg(long)]
        limit: Option<usize>,
        /// Hidden files as well
        #[arg(long)]
        hidden: bool,
    },
    /// Tell what is at a path
    Stat { sandbox: String, path: OsString },
    /// Make a directory
    Mkdir { sandbox: String, path: OsString },
    /// Remove a file or an empty directory, or with `-r` a directory with all that is in it
    Rm {
        sandbox: String,
        path: OsString,
        #[arg(short = 'r', long)]
        recursive: bool,
    },
    /// Move a file or directory
    Mv {
        sandbox: String,
        from: OsString,
        to: OsString,
        /// Replace what is there
        #[arg(short = 'f', long)]
        overwrite: bool,
    },
    /// Send a JSON request from standard input to a tool, and print its JSON answer
    Call { sandbox: String, tool: String },
}

fn line_range(text: &str) -> Result<[u64; 2], String> {
    let number = |text: &str| {
        text.parse::<u64>()
            .map_err(|_| format!("`{text}` is not a line number"))
    };
    match text.split_once(':') {
        Some((from, "")) => Ok([number(from)?, u64::MAX]),
        Some((from, to)) => Ok([number(from)?, number(to)?]),
        None => Ok([number(text)?, number(text)?]),
    }
}

impl Fs {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let host = open_host()?;
        let (sandbox, verb, request) = asked(self.tool)?;
        let raw = matches!(verb, Asked::Call(_));
        let (Asked::Call(verb) | Asked::Tool(verb)) = verb;
        let id = host.store.find_sandbox(&sandbox)?.id;
        let lost = if self.replace {
            Lost::Replace
        } else {
            Lost::Tell
        };
        let mut out = std::io::stdout().lock();
        let mut tell = |note: &str| eprintln!("ringfence: {}", clean(note));
        match tool(&host, id, verb, &request, lost, &mut tell)? {
            Used::Answer(value) => {
                if self.json || raw {
                    let value = if raw { json!({ "ok": value }) } else { value };
                    writeln!(out, "{}", clean_json(&value.to_string()))?;
                } else {
                    print(&mut out, verb, value)?;
                }
                Ok(ExitCode::SUCCESS)
            }
            Used::Failed(failure) => {
                if self.json || raw {
                    let value = json!({ "error": failure });
                    writeln!(out, "{}", clean_json(&value.to_string()))?;
                } else {
                    eprintln!("error: {}", clean(&failure.message));
                    if let Some(hint) = &failure.hint {
                        eprintln!("hint: {}", clean(hint));
                    }
                }
                Ok(ExitCode::from(match failure.kind {
                    FailureKind::Denied => 3,
                    FailureKind::Internal => 70,
                    _ => 2,
                }))
            }
        }
    }
}

enum Asked {
    Tool(Verb),
    Call(Verb),
}

/// The request of each tool.
fn asked(tool: Tool) -> anyhow::Result<(String, Asked, Value)> {
    let bytes = |path: OsString| ByteText(path.into_vec());
    let (sandbox, verb, request) = match tool {
        Tool::Read {
            sandbox,
            path,
            offset,
            length,
            lines,
        } => {
            let mut request = json!({ "path": bytes(path) });
            for (key, value) in [
                ("offset", json!(offset)),
                ("length", json!(length)),
                ("lines", json!(lines)),
            ] {
                if !value.is_null() {
                    request[key] = value;
                }
            }
            (sandbox, Verb::Read, request)
        }
        Tool::Write {
            sandbox,
            path,
            append,
            create,
            executable,
        } => {
            let mode = match (append, create) {
                (true, _) => "append",
                (_, true) => "create",
                _ => "replace",
            };
            let mut request = json!({
                "path": bytes(path),
                "bytes": Base64(input()?),
                "mode": mode,
            });
            if executable {
                request["executable"] = json!(true);
            }
            (sandbox, Verb::Write, request)
        }
        Tool::Edit {
            sandbox,
            path,
            old,
            new,
            all,
        } => {
            let request = json!({ "path": bytes(path), "old": old, "new": new, "all": all });
            (sandbox, Verb::Edit, request)
        }
        Tool::Patch {
            sandbox,
            dry_run,
            strip,
        } => {
            let request = json!({ "bytes": Base64(input()?), "dry_run": dry_run, "strip": strip });
            (sandbox, Verb::Patch, request)
        }
        Tool::List {
            sandbox,
            path,
            depth,
        } => {
            let mut request = json!({ "path": bytes(path) });
            if let Some(depth) = depth {
                request["depth"] = json!(depth);
            }
            (sandbox, Verb::List, request)
        }
        Tool::Glob {
            sandbox,
            pattern,
            ignored,
        } => {
            let ignored = if ignored { "show" } else { "skip" };
            let request = json!({ "pattern": pattern, "ignored": ignored });
            (sandbox, Verb::Glob, request)
        }
        Tool::Search {
            sandbox,
            pattern,
            path,
            fixed,
            ignore_case,
            word,
            glob,
            context,
            limit,
            hidden,
        } => {
            let case = if ignore_case {
                "insensitive"
            } else {
                "sensitive"
            };
            let mut request = json!({
                "pattern": pattern, "path": bytes(path), "fixed": fixed, "case": case,
                "word": word, "globs": glob, "hidden": hidden,
            });
            for (key, value) in [("context", json!(context)), ("limit", json!(limit))] {
                if !value.is_null() {
                    request[key] = value;
                }
            }
            (sandbox, Verb::Search, request)
        }
        Tool::Stat { sandbox, path } => (sandbox, Verb::Stat, json!({ "path": bytes(path) })),
        Tool::Mkdir { sandbox, path } => (sandbox, Verb::Mkdir, json!({ "path": bytes(path) })),
        Tool::Rm {
            sandbox,
            path,
            recursive,
        } => {
            let request = json!({ "path": bytes(path), "recursive": recursive });
            (sandbox, Verb::Remove, request)
        }
        Tool::Mv {
            sandbox,
            from,
            to,
            overwrite,
        } => {
            let request = json!({ "from": bytes(from), "to": bytes(to), "overwrite": overwrite });
            (sandbox, Verb::Move, request)
        }
        Tool::Call { sandbox, tool } => {
            let Some(verb) = Verb::parse(&tool) else {
                let names: Vec<&str> = Verb::ALL.into_iter().map(Verb::name).collect();
                anyhow::bail!("there is no tool `{tool}`: {}", names.join(", "));
            };
            let request = serde_json::from_slice(&input()?)?;
            return Ok((sandbox, Asked::Call(verb), request));
        }
    };
    Ok((sandbox, Asked::Tool(verb), request))
}

fn input() -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // BOUND: a request may have 8 MiB; what is longer is refused by its size.
    std::io::stdin()
        .lock()
        .take(16 << 20)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The answer for a person, or for a pipe.
fn print(out: &mut dyn std::io::Write, verb: Verb, value: Value) -> anyhow::Result<()> {
    match verb {
        Verb::Read => {
            let read: ReadAnswer = serde_json::from_value(value)?;
            let bytes = match (read.text, read.bytes) {
                (Some(text), _) => text.into_bytes(),
                (None, Some(Base64(bytes))) => bytes,
                (None, None) => Vec::new(),
            };
            if std::io::IsTerminal::is_terminal(&std::io::stdout()) {
                write!(out, "{}", crate::text::clean_bytes(&bytes))?;
            } else {
                out.write_all(&bytes)?;
            }
            if read.truncated {
                eprintln!("… more of {} bytes", read.size);
            }
        }
        Verb::List => {
            let list: ListAnswer = serde_json::from_value(value)?;
            for entry in &list.entries {
                let kind = serde_json::to_value(entry.kind)?;
                let kind = kind.as_str().unwrap_or("?").to_owned();
                let path = clean(&entry.path.to_text());
                writeln!(out, "{kind:<9} {:>10}  {path}", entry.size)?;
            }
            tell_cut(list.truncated);
        }
        Verb::Glob => {
            let glob: GlobAnswer = serde_json::from_value(value)?;
            for path in &glob.paths {
                writeln!(out, "{}", clean(&path.to_text()))?;
            }
            tell_cut(glob.truncated);
        }
        Verb::Search => {
            let search: SearchAnswer = serde_json::from_value(value)?;
            for found in &search.matches {
                let path = clean(&found.path.to_text());
                // HOSTILE: these numbers come from inside.
                let first = found.line.saturating_sub(found.before.len() as u64);
                for (line, text) in (first..).zip(&found.before) {
                    writeln!(out, "{path}-{line}-{}", clean(text))?;
                }
                writeln!(out, "{path}:{}:{}", found.line, clean(&found.text))?;
                for (line, text) in (found.line.saturating_add(1)..).zip(&found.after) {
                    writeln!(out, "{path}-{line}-{}", clean(text))?;
                }
            }
            tell_cut(search.truncated);
        }
        _ => writeln!(out, "{}", clean_json(&value.to_string()))?,
    }
    Ok(())
}

fn tell_cut(truncated: bool) {
    if truncated {
        eprintln!("… there is more");
    }
}
