//! What each change of a patch makes of the tip.

use super::*;

/// One patch that is being placed.
pub(super) struct Place<'s, 'p> {
    stack: &'s mut Stack,
    /// Paths whose content the patch takes away or replaces.
    taken: BTreeSet<&'p [u8]>,
    /// What becomes of them.
    becomes: BTreeMap<&'p [u8], Option<Blob<'p>>>,
    step: Step,
    clashes: Vec<Clash>,
}

/// What a change starts from on the tip.
enum Old {
    /// The same as in the run, or nothing.
    Same,
    /// Joined with what is there.
    Joined(FileMode, Vec<u8>),
    /// It is as the patch wants it.
    Done,
    Clash,
}

impl<'s, 'p> Place<'s, 'p> {
    pub fn new(stack: &'s mut Stack, number: u32, patch: &'p Patch<'p>) -> Self {
        let steps = patch.steps();
        let taken = steps.iter().filter(|(_, step)| step.old.is_some());
        let pair = |entry: &Entry<'_>| (entry.old_path().to_vec(), entry.path().to_vec());
        Self {
            taken: taken.map(|(path, _)| *path).collect(),
            becomes: steps.iter().map(|(path, step)| (*path, step.new)).collect(),
            step: Step {
                number,
                tree: stack.tip.clone(),
                changed: BTreeMap::new(),
                pairs: patch.entries.iter().map(pair).collect(),
                merged: Vec::new(),
                blobs: BTreeMap::new(),
                trees: BTreeMap::new(),
            },
            stack,
            clashes: Vec::new(),
        }
    }

    pub fn end(self) -> (Step, Vec<Clash>) {
        (self.step, self.clashes)
    }

    fn clash(&mut self, path: &[u8], why: impl Into<String>, lines: Option<Lines>) {
        // Others come to light when these are gone.
        if self.clashes.len() < NAMED {
            self.clashes.push(Clash {
                path: ByteText::from(path),
                why: why.into(),
                lines,
                with: self.stack.who(path),
            });
        }
    }

    /// One change.
    pub fn entry(&mut self, entry: &'p Entry<'p>) -> Result<(), ApplyError> {
        let (from, to) = (entry.old_path(), entry.path());
        let old = match &entry.change.old {
            None => Old::Same,
            Some(side) => self.old(from, side, entry)?,
        };
        if matches!(old, Old::Done | Old::Clash) {
            return Ok(());
        }
        if entry.change.old.is_some() {
            self.step.changed.entry(from.to_vec()).or_insert(None);
        }
        let Some(side) = &entry.change.new else {
            return Ok(());
        };
        let (mode, content) = match old {
            Old::Joined(mode, content) => {
                self.step.merged.push(ByteText::from(to));
                (mode, content)
            }
            _ => (side.mode, self.content(entry)?),
        };
        let oid = ringfence_model::hex(&object_id("blob", &content, self.stack.hash()));
        if !self.taken.contains(to) {
            match self.stack.at(to).as_ref().map(blob_of) {
                None => {}
                Some(Some(found)) if found == (mode, oid.clone()) => return Ok(()),
                // Where all of it goes with this patch, there is room; the tree will tell.
                Some(None) => {}
                Some(Some(_)) => {
                    self.clash(to, "both add it, and not the same", None);
                    return Ok(());
                }
            }
        }
        self.step
            .changed
            .insert(to.to_vec(), Some((mode, oid.clone())));
        self.step.blobs.insert(oid, Arc::from(content));
        Ok(())
    }

    /// The new content of a change whose old one is as the run had it.
    fn content(&mut self, entry: &Entry<'_>) -> Result<Vec<u8>, ApplyError> {
        let old = match &entry.change.old {
            Some(side) if !entry.is_self_contained() => Some(self.stack.blob(&side.oid)?),
            _ => None,
        };
        let content = entry.content(old.as_deref())?;
        Ok(content.unwrap_or_default().into_owned())
    }

    fn old(
        &mut self,
        path: &'p [u8],
        side: &Side,
        entry: &'p Entry<'p>,
    ) -> Result<Old, ApplyError> {
        let found = self.stack.at(path);
        let blob = found.as_ref().and_then(blob_of);
        if blob
            .as_ref()
            .is_some_and(|(mode, oid)| (*mode, oid) == (side.mode, &side.oid))
        {
            return Ok(Old::Same);
        }
        if self.is_done(path, blob.as_ref(), entry) {
            return Ok(Old::Done);
        }
        let Some((mode, oid)) = blob else {
            let why = match found {
                None => {
                    "it is not on the branch: another task removed it, or git does not track it"
                }
                Some(_) => "it is a directory or a submodule by now",
            };
            self.clash(path, why, None);
            return Ok(Old::Clash);
        };
        let Some(new) = &entry.change.new else {
            self.clash(path, "it was changed, and this patch removes it", None);
            return Ok(Old::Clash);
        };
        if [side.mode, new.mode, mode].contains(&FileMode::Symlink) {
            self.clash(path, "it was changed, and this patch changes it too", None);
            return Ok(Old::Clash);
        }
        let kept = if side.mode == new.mode {
            mode
        } else {
            new.mode
        };
        if oid == side.oid {
            // Only its mode was changed.
            return Ok(Old::Joined(kept, self.content(entry)?));
        }
        if side.size.max(new.size) > MERGED_BYTES {
            self.clash(path, "it was changed, and is too large to be merged", None);
            return Ok(Old::Clash);
        }
        let (Ok(base), Ok(tip)) = (self.stack.blob(&side.oid), self.stack.blob(&oid)) else {
            let why = "it was changed, and what the run found is not in git";
            self.clash(path, why, None);
            return Ok(Old::Clash);
        };
        let theirs = entry.content(Some(&base))?.unwrap_or_default();
        match joined(&base, &tip, &theirs) {
            Ok(content) => Ok(Old::Joined(kept, content)),
            Err(Apart::NotText) => {
                self.clash(path, "it was changed, and is not text", None);
                Ok(Old::Clash)
            }
            Err(Apart::Lines(lines)) => {
                let lines = Lines {
                    first: lines.start + 1,
                    last: lines.end,
                };
                self.clash(path, "the same lines were changed", Some(lines));
                let met = self.stack.who_met(path, &base, &theirs);
                if let (Some(number), Some(clash)) = (met, self.clashes.last_mut()) {
                    clash.with = vec![number];
                }
                Ok(Old::Clash)
            }
        }
    }

    /// Whether the tip is as the patch wants it.
    fn is_done(
        &mut self,
        path: &[u8],
        found: Option<&(FileMode, String)>,
        entry: &Entry<'_>,
    ) -> bool {
        let is = |found: Option<&(FileMode, String)>, (mode, oid): Blob<'_>| {
            found.is_some_and(|(own, id)| *own == mode && id == oid)
        };
        match (self.becomes.get(path).copied().flatten(), &entry.change.new) {
            (Some(new), _) => is(found, new),
            (None, None) => self.stack.at(path).is_none(),
            // It was moved.
            (None, Some(side)) => {
                let there = self.stack.blob_at(entry.path());
                self.stack.at(path).is_none() && is(there.as_ref(), (side.mode, &side.oid))
            }
        }
    }
}
