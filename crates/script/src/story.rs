//! Script files: stories, their steps, and the comparison of what is printed with what should be.

use crate::command::Command;
use crate::target::Target;

/// Some commands and what they print.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Step {
    /// The comment before it; one that is not empty starts a story, on an empty store.
    pub comment: Vec<String>,
    /// The commands, each with the number of its line.
    pub commands: Vec<(usize, String)>,
    /// What stands below `----`.
    pub expected: Vec<String>,
}

/// Reads a script file.
///
/// # Errors
/// The line that cannot be read, and why.
pub fn parse(text: &str) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    let mut step = Step::default();
    let mut below = false;
    for (at, line) in text.lines().chain([""]).enumerate() {
        let number = at + 1;
        if line.is_empty() {
            if below {
                steps.push(std::mem::take(&mut step));
                below = false;
            } else if !step.commands.is_empty() {
                return Err(format!("line {number}: the commands above have no `----`"));
            }
        } else if below {
            step.expected.push(line.to_string());
        } else if line == "----" {
            below = true;
        } else if line.starts_with('#') {
            if !step.commands.is_empty() {
                return Err(format!("line {number}: a comment stands before the commands"));
            }
            step.comment.push(line.to_string());
        } else {
            Command::parse(line).map_err(|error| format!("line {number}: {error}"))?;
            step.commands.push((number, line.to_string()));
        }
    }
    match steps.first() {
        Some(first) if first.comment.is_empty() => {
            Err(String::from("the first story has no comment"))
        }
        _ => Ok(steps),
    }
}

/// Runs the steps in order, each story on a target of its own; gives what each step prints.
#[must_use]
pub fn print(steps: &[Step], make: &dyn Fn() -> Box<dyn Target>) -> Vec<Vec<String>> {
    let mut target = make();
    let mut printed = Vec::new();
    for step in steps {
        if !step.comment.is_empty() {
            target = make();
        }
        let mut lines = Vec::new();
        for (number, line) in &step.commands {
            match Command::parse(line) {
                Ok(command) => lines.extend(target.execute(&command)),
                Err(error) => lines.push(format!("line {number}: {error}")),
            }
        }
        printed.push(lines);
    }
    printed
}

/// Runs a script file.
///
/// # Errors
/// Every step that prints something else than it should, both texts in full.
pub fn run(text: &str, make: &dyn Fn() -> Box<dyn Target>) -> Result<(), String> {
    let steps = parse(text)?;
    let mut wrong = String::new();
    for (step, printed) in steps.iter().zip(print(&steps, make)) {
        if step.expected != printed {
            let line = step.commands.first().map_or(0, |(number, _)| *number);
            let story = step.comment.join("\n");
            let (expected, printed) = (step.expected.join("\n"), printed.join("\n"));
            wrong += &format!(
                "\n{story}\nthe step at line {line} should print\n{expected}\nbut prints\n{printed}\n"
            );
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// The script file with what is printed in the place of what should be.
///
/// # Errors
/// The file cannot be read.
pub fn rewritten(text: &str, make: &dyn Fn() -> Box<dyn Target>) -> Result<String, String> {
    let steps = parse(text)?;
    let stories = steps.iter().zip(print(&steps, make)).map(|(step, printed)| {
        let commands = step.commands.iter().map(|(_, line)| line.as_str());
        let lines = step.comment.iter().map(String::as_str).chain(commands);
        let lines = lines.chain(["----"]).chain(printed.iter().map(String::as_str));
        lines.collect::<Vec<_>>().join("\n") + "\n"
    });
    Ok(stories.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo(usize);

    impl Target for Echo {
        fn execute(&mut self, command: &Command) -> Vec<String> {
            self.0 += 1;
            match command {
                Command::Flush => Vec::new(),
                _ => vec![format!("command {}", self.0)],
            }
        }
    }

    const TEXT: &str = "# One.\nflush\nscan\n----\ncommand 2\n\nscan\n----\ncommand 3\n\n# Two.\nscan\n----\ncommand 1\n";

    #[test]
    fn stories_start_anew_and_steps_go_on() {
        assert_eq!(run(TEXT, &|| Box::new(Echo(0))), Ok(()));
        assert_eq!(rewritten(TEXT, &|| Box::new(Echo(0))).as_deref(), Ok(TEXT));
        let wrong = TEXT.replace("command 3", "command 4");
        let error = run(&wrong, &|| Box::new(Echo(0))).unwrap_err();
        assert!(error.contains("line 7") && error.contains("command 3"), "{error}");
        assert_eq!(rewritten(&wrong, &|| Box::new(Echo(0))).as_deref(), Ok(TEXT));
    }

    #[test]
    fn what_cannot_be_read_names_its_line() {
        for (text, line) in [
            ("# A.\nget\n----\n", "line 2"),
            ("# A.\nget a b\n----\n", "line 2"),
            ("# A.\nscan\n# B.\n----\n", "line 3"),
            ("# A.\nscan\n", "line 3"),
            ("scan\n----\n", "first story"),
        ] {
            let error = run(text, &|| Box::new(Echo(0))).unwrap_err();
            assert!(error.contains(line), "{error}");
        }
    }
}
