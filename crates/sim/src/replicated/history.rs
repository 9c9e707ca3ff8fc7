//! What clients have asked and been answered, and whether that can be explained.

/// What a client asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    /// Appends this operation's own number to a list, and shows the list.
    Append,
    /// Shows a list.
    Read,
}

/// One operation.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) list: usize,
    pub(super) operation: Operation,
    pub(super) began: u64,
    /// When it was answered, and the list that was shown.
    pub(super) answer: Option<(u64, Vec<u32>)>,
    /// It was said that it is not done, and will not be.
    pub(super) refused: bool,
}

/// All operations; each is named by its place.
#[derive(Default)]
pub(super) struct History {
    pub(super) asked: Vec<Asked>,
    /// The greatest epoch that has answered.
    epoch: u64,
    pub(super) answers: u64,
}

impl History {
    /// An operation begins.
    pub(super) fn begin(&mut self, list: usize, operation: Operation, now: u64) -> usize {
        self.asked.push(Asked { list, operation, began: now, answer: None, refused: false });
        self.asked.len() - 1
    }

    /// An owner answers.
    pub(super) fn end(
        &mut self,
        which: usize,
        list: Vec<u32>,
        epoch: u64,
        now: u64,
    ) -> Result<(), String> {
        if epoch < self.epoch {
            let later = self.epoch;
            return Err(format!("at {now}, epoch {epoch} answers behind epoch {later}"));
        }
        self.epoch = epoch;
        self.answers += 1;
        self.asked[which].answer = Some((now, list));
        Ok(())
    }

    /// Whether what is there in the end explains everything.
    pub(super) fn check(&self, lists: &[Vec<u32>]) -> Result<(), String> {
        lists.iter().enumerate().try_for_each(|(at, list)| self.check_list(at, list))
    }

    fn check_list(&self, at: usize, list: &[u32]) -> Result<(), String> {
        let mut places = vec![None; self.asked.len()];
        for (place, &number) in list.iter().enumerate() {
            let asked = self.asked.get(number as usize);
            let appended =
                asked.is_some_and(|asked| asked.list == at && asked.operation == Operation::Append);
            if asked.is_some_and(|asked| asked.refused) {
                return Err(format!("append {number} to list {at} was refused, and is there"));
            }
            if !appended || places[number as usize].replace(place).is_some() {
                return Err(format!("list {at} has {number} twice, or nobody appended it"));
            }
        }
        // Version, whether it only reads, begin and end.
        let mut order: Vec<Versioned> = Vec::new();
        for (which, asked) in self.asked.iter().enumerate().filter(|(_, asked)| asked.list == at) {
            let reads = asked.operation == Operation::Read;
            if let Some((end, seen)) = &asked.answer {
                if !list.starts_with(seen) {
                    return Err(format!(
                        "operation {which} saw {seen:?} in list {at}, which is {list:?} in the end"
                    ));
                }
                let place = places[which];
                if !reads && place.is_none_or(|place| seen.len() != place + 1) {
                    return Err(format!(
                        "append {which} to list {at} was acknowledged and is lost, or elsewhere: {list:?}"
                    ));
                }
                order.push((seen.len() as u64, reads, asked.began, *end, which));
            } else if let Some(place) = places[which] {
                order.push((place as u64 + 1, false, asked.began, u64::MAX, which));
            }
        }
        check_order(&format!("list {at}"), order)
    }
}

/// An operation on something that has versions: the version, whether it only reads, when it began and ended, and its number.
pub type Versioned = (u64, bool, u64, u64, usize);

/// Whether there is an order of all operations that explains the versions of `what` which they saw.
///
/// # Errors
/// There is none: one that began when another had ended saw less than that one.
pub fn check_order(what: &str, mut all: Vec<Versioned>) -> Result<(), String> {
    all.sort_unstable();
    let (mut earliest_end, mut of) = (u64::MAX, 0);
    let mut rest = &all[..];
    while let Some(last) = rest.last() {
        // All reads of one version are in whatever order their times are.
        let group = rest.iter().rev().take_while(|one| (one.0, one.1) == (last.0, last.1));
        let group = &rest[rest.len() - group.count()..];
        rest = &rest[..rest.len() - group.len()];
        if let Some(late) = group.iter().find(|one| one.2 > earliest_end) {
            return Err(format!(
                "{what}: operation {} began at {} and saw version {}; operation {of} had ended at {earliest_end}, and saw more",
                late.4, late.2, late.0
            ));
        }
        let first = group.iter().min_by_key(|one| one.3).expect("there is one");
        if first.3 < earliest_end {
            (earliest_end, of) = (first.3, first.4);
        }
    }
    Ok(())
}
