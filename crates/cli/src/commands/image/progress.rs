//! How far a pull is: a bar on a terminal, a line for each step elsewhere.

use std::io::{IsTerminal as _, Write as _, stderr};

use ringfence_engine::images::{Event, LayerSize, Progress};
use ringfence_model::limits::HumanBytes;

use crate::text::clean;

/// Characters of the bar.
const WIDTH: u64 = 30;

pub struct Shown {
    bar: bool,
    layers: Vec<LayerSize>,
    got: Vec<u64>,
    done: usize,
    drawn: bool,
}

impl Shown {
    pub fn start() -> Self {
        Self {
            bar: stderr().is_terminal(),
            layers: Vec::new(),
            got: Vec::new(),
            done: 0,
            drawn: false,
        }
    }

    /// Takes the bar away.
    pub fn end(&mut self) {
        self.clear();
    }

    fn clear(&mut self) {
        if self.drawn {
            self.drawn = false;
            // Who closed the terminal does not look at it.
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }

    fn line(&mut self, text: &str) {
        self.clear();
        let _ = writeln!(stderr(), "{}", clean(text));
        self.draw();
    }

    fn draw(&mut self) {
        let all: u64 = self.missing().map(|layer| layer.bytes).sum();
        if !self.bar || all == 0 {
            return;
        }
        let got: u64 = self.got.iter().sum();
        let filled = (got.min(all) * WIDTH / all) as usize;
        let bar = format!("{:<1$}", "#".repeat(filled), WIDTH as usize);
        let (got, all) = (HumanBytes(got), HumanBytes(all));
        let (done, layers) = (self.done, self.missing().count());
        let _ = write!(
            stderr(),
            "\r\x1b[K[{bar}] {got} of {all}, {done} of {layers} layers unpacked"
        );
        let _ = stderr().flush();
        self.drawn = true;
    }

    fn missing(&self) -> impl Iterator<Item = &LayerSize> {
        self.layers.iter().filter(|layer| !layer.here)
    }

    fn short(&self, layer: usize) -> String {
        let hex = self.layers.get(layer).map(|layer| layer.diff.hex());
        hex.unwrap_or_default().chars().take(12).collect()
    }
}

impl Progress for Shown {
    fn happened(&mut self, event: Event) {
        match event {
            Event::Found { digest, layers } => {
                self.got = vec![0; layers.len()];
                self.done = 0;
                self.layers = layers;
                let missing: u64 = self.missing().map(|layer| layer.bytes).sum();
                let text = format!(
                    "{digest}: {} layers, {} of them here, {} to get",
                    self.layers.len(),
                    self.layers.iter().filter(|layer| layer.here).count(),
                    HumanBytes(missing)
                );
                self.line(&text);
            }
            Event::Waiting => self.line("waiting: another process is at it"),
            Event::Downloaded { layer, bytes } => {
                if let Some(got) = self.got.get_mut(layer) {
                    *got = bytes;
                }
                let whole = self.layers.get(layer).is_some_and(|l| l.bytes == bytes);
                match self.bar {
                    true => self.draw(),
                    false if whole => {
                        let text = format!("{}: downloaded", self.short(layer));
                        self.line(&text);
                    }
                    false => {}
                }
            }
            Event::Retrying { why, seconds } => {
                self.line(&format!("{why}; trying again in {seconds} s"));
            }
            Event::Unpacking { .. } => {}
            Event::Unpacked { layer } => {
                self.done += 1;
                if self.bar {
                    self.draw()
                } else {
                    let text = format!("{}: unpacked", self.short(layer));
                    self.line(&text);
                }
            }
            Event::Renamed { name, before } => {
                self.line(&format!("note: {name} was {before} before"));
            }
            Event::Noted(note) => {
                let text = format!(
                    "note: left out {} × {}; the first: `{}`",
                    note.count, note.what, note.first
                );
                self.line(&text);
            }
        }
    }
}
