//! A proposal in words.

use std::io::{self, Write};

use ringfence_engine::init::Proposal;
use ringfence_engine::toolchains::Chosen;

use crate::text::{clean, shorten};

/// BOUND: how much of a value is shown; the file has all of it.
const WIDE: usize = 300;

/// Tells what is proposed and why, what is left out, and what only the user can do.
///
/// HOSTILE: names, commands and reasons come out of the repository.
pub fn tell(out: &mut dyn Write, proposal: &Proposal) -> io::Result<()> {
    let proposed = &proposal.proposed;
    let mut rows: Vec<(String, String, String)> = Vec::new();
    let mut row = |key: &str, value: &str, why: &str| {
        rows.push((key.to_owned(), shorten(value, WIDE), clean(why)));
    };
    if let Some(image) = &proposed.image {
        row("image", &image.value, &image.why);
    }
    for said in &proposed.setup {
        row("setup", &said.value, &said.why);
    }
    if !proposed.key.is_empty() {
        let key: Vec<&str> = proposed
            .key
            .iter()
            .map(|said| said.value.as_str())
            .collect();
        let key = format!(
            "{}; a change in one of these runs the setup again",
            key.join(", ")
        );
        row("key", &key, "");
    }
    if !proposed.path.is_empty() {
        let path: Vec<&str> = proposed
            .path
            .iter()
            .map(|said| said.value.as_str())
            .collect();
        row("path", &path.join(", "), "");
    }
    for (name, said) in &proposed.env {
        row("env", &format!("{name}={}", said.value), &said.why);
    }
    if !proposed.cache.is_empty() {
        let names: Vec<&str> = proposed
            .cache
            .iter()
            .map(|said| said.value.as_str())
            .collect();
        let names = format!("{}; shared read-only, private on write", names.join(", "));
        row("cache", &names, "");
    }
    for area in &proposed.scratch {
        let value = format!("{} in memory, {}", area.inside, area.size);
        row("tmpfs", &value, &area.why);
    }
    for (key, value, why) in &rows {
        writeln!(out, "  {key:<6} {value}")?;
        if !why.is_empty() {
            writeln!(out, "  {:<6} from {why}", "")?;
        }
    }
    programs(out, proposal)?;
    if !proposed.left_out.is_empty() {
        writeln!(out, "\nnot taken over")?;
        for (at, left) in proposed.left_out.iter().enumerate() {
            let line = format!("{}  {}", left.place, left.what);
            writeln!(out, "  {}", shorten(&line, 100))?;
            // Said once for those that it is the same for.
            let next = proposed.left_out.get(at + 1);
            if next.is_none_or(|next| next.instead != left.instead) {
                writeln!(out, "      {}", clean(&left.instead))?;
            }
        }
    }
    grants(out, proposal)?;
    if !proposed.commands.is_empty() {
        writeln!(out, "\nto have the image with all that its Dockerfile does")?;
        for said in &proposed.commands {
            writeln!(out, "  {}", clean(&said.value))?;
        }
        writeln!(out, "  and then: image = \"local/dev\"")?;
    }
    if let Some(image) = &proposed.image {
        writeln!(out, "\nnext: ringfence image pull {}", clean(&image.value))?;
    }
    Ok(())
}

/// Where programs come from.
fn programs(out: &mut dyn Write, proposal: &Proposal) -> io::Result<()> {
    if proposal.choices.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nprograms, without an image")?;
    for choice in &proposal.choices {
        let from = match choice.from {
            Chosen::System => {
                let mut needs = proposal.proposed.needs.iter();
                let need = needs.find(|need| need.program == choice.program);
                match need.and_then(|need| need.version.as_ref()) {
                    None => "of the system".to_owned(),
                    Some(pin) => format!(
                        "of the system; {} wants {}, which was not compared",
                        pin.why, pin.value
                    ),
                }
            }
            Chosen::Toolchain(at) => {
                let toolchain = &proposal.toolchains[at];
                format!("{}: {}", toolchain.title(), toolchain.why)
            }
            Chosen::Nowhere => "NOT FOUND on this machine; install it, or name an image".to_owned(),
        };
        let line = format!("{:<8} {from}", choice.program);
        writeln!(out, "  {}", clean(&line))?;
    }
    for toolchain in &proposal.toolchains {
        let is_used = proposal.choices.iter().any(|choice| {
            matches!(choice.from, Chosen::Toolchain(at) if proposal.toolchains[at] == *toolchain)
        });
        for note in toolchain.notes.iter().filter(|_| is_used) {
            writeln!(out, "  note: {}: {}", toolchain.manager, clean(note))?;
        }
    }
    Ok(())
}

/// What only the user can give.
fn grants(out: &mut dyn Write, proposal: &Proposal) -> io::Result<()> {
    let grants = &proposal.grants;
    if let Some(fault) = &proposal.policy_fault {
        writeln!(out, "\nyour own policy cannot be read: {}", clean(fault))?;
    }
    if !grants.is_empty() {
        writeln!(
            out,
            "\nonly you can grant this, in your own policy; `ringfence init --user` adds it"
        )?;
        for line in grants.to_toml().trim().lines() {
            writeln!(out, "  {}", clean(line))?;
        }
    }
    if !grants.asked.is_empty() {
        writeln!(
            out,
            "\nthe repository asks for paths of your machine; grant them only if you know why"
        )?;
        for asked in &grants.asked {
            writeln!(out, "  [[files.mount]]")?;
            writeln!(out, "  host = \"{}\"", clean(&asked.host))?;
            writeln!(out, "  inside = \"{}\"", clean(&asked.inside))?;
        }
    }
    Ok(())
}
