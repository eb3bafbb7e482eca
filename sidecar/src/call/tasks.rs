//! Tasks that a server works on after it has answered the call. A later request about one must reach the process that has
//! it, with the credential of the tool that made it. The two eras spell it differently: `result.task.taskId`
//! (2025-11-25), and `result.taskId` of type `task`.
//!
//! What must stay true: the table is bounded; a request about a task that was forgotten too early goes to the current
//! process, which refuses it as unknown.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::LazyLock;

use cofferdam_servers::ProcessId;
use memchr::memmem::Finder;
use relay_proto::envelope::{Outcome, ShortText};
use relay_proto::json;
use relay_proto::mcp::{self, Method, TaskRole};

#[derive(Debug, Default)]
pub(super) struct TaskTable {
    open: HashMap<Box<str>, Made>,
    /// The oldest first; those that are over are skipped.
    order: VecDeque<Box<str>>,
}

/// The process that made a task, and the tool that was called.
#[derive(Debug)]
struct Made {
    by: ProcessId,
    tool: ShortText,
}

/// Tasks of one link that are remembered: more at a time no honest harness has.
const MAX_TASKS: usize = 1024;
const MAX_ID: usize = 256;
/// An answer that only says which task it is has some hundred bytes.
const MAX_ANSWER: usize = 16 * 1024;

/// Made once: making it costs more than searching a small answer, and every answer of a tool is searched.
static TASK_ID: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"taskId\""));

/// The task that a request is about.
pub(super) fn asked_for(message: &[u8], method: &Method, params: Option<Range<usize>>) -> Option<Box<str>> {
    if method.task == TaskRole::None {
        return None;
    }
    let id = json::member(message, params?, "taskId")?;
    json::text(message, id).filter(|id| id.len() <= MAX_ID).map(Into::into)
}

impl TaskTable {
    /// Looks whether the answer to a call says that a task was made of it.
    pub(super) fn learn(&mut self, message: &[u8], result: Range<usize>, by: ProcessId, tool: &ShortText) {
        if message.len() > MAX_ANSWER || TASK_ID.find(message).is_none() {
            return;
        }
        let member = |object: &Range<usize>, key: &str| json::member(message, object.clone(), key);
        let is_task = member(&result, "resultType").is_some_and(|span| &message[span] == b"\"task\"");
        let task = member(&result, "task").or(is_task.then_some(result));
        let id = task.and_then(|task| member(&task, "taskId")).and_then(|id| json::text(message, id));
        if let Some(id) = id.filter(|id| id.len() <= MAX_ID) {
            self.insert(id.into(), Made { by, tool: tool.clone() });
        }
    }

    /// The harness heard this about a task: it may have no further question.
    pub(super) fn heard(
        &mut self,
        task: &str,
        method: &str,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) {
        let text = |key: &str| {
            let span = json::member(message, body.clone()?, key)?;
            json::text(message, span)
        };
        let role = mcp::lookup(method).map(|method| method.task);
        let over = match (role, outcome) {
            (Some(TaskRole::EndsOnReply), _) | (_, Outcome::Error) => true,
            (_, Outcome::Result) => match text("status").as_deref() {
                Some("cancelled") => true,
                // In the stateless era the result is part of this; before, it is asked for separately.
                Some("completed" | "failed") => text("resultType").is_some(),
                _ => false,
            },
        };
        if over {
            self.open.remove(task);
        }
    }

    pub(super) fn process_of(&self, task: &str) -> Option<ProcessId> {
        self.open.get(task).map(|made| made.by)
    }

    /// What was called when it was made.
    pub(super) fn tool_of(&self, task: &str) -> Option<&str> {
        self.open.get(task).map(|made| &*made.tool)
    }

    pub(super) fn occupy(&self, process: ProcessId) -> bool {
        self.open.values().any(|made| made.by == process)
    }

    pub(super) fn forget_process(&mut self, process: ProcessId) {
        self.open.retain(|_, made| made.by != process);
    }

    fn insert(&mut self, id: Box<str>, made: Made) {
        while self.order.len() >= MAX_TASKS {
            if let Some(oldest) = self.order.pop_front() {
                self.open.remove(&oldest);
            }
        }
        self.order.push_back(id.clone());
        self.open.insert(id, made);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learn(tasks: &mut TaskTable, result: &str, process: ProcessId) {
        tasks.learn(result.as_bytes(), 0..result.len(), process, &"make".into());
    }

    #[test]
    fn both_eras_say_that_a_task_was_made_and_nothing_else_does() {
        let (mut tasks, process) = (TaskTable::default(), ProcessId::unused(0));
        learn(&mut tasks, r#"{"task":{"taskId":"old","status":"working"}}"#, process);
        learn(&mut tasks, r#"{"resultType":"task","taskId":"new","status":"working"}"#, process);
        learn(&mut tasks, r#"{"resultType":"complete","taskId":"no"}"#, process);
        learn(&mut tasks, r#"{"content":[{"type":"text","text":"\"taskId\":\"neither\""}]}"#, process);
        assert_eq!(tasks.process_of("old"), Some(process));
        assert_eq!((tasks.process_of("new"), tasks.tool_of("new")), (Some(process), Some("make")));
        assert_eq!(tasks.open.len(), 2);
        assert!(tasks.occupy(process));
        tasks.forget_process(process);
        assert!(!tasks.occupy(process));
    }

    #[test]
    fn a_task_is_over_when_its_result_was_heard() {
        let (mut tasks, process) = (TaskTable::default(), ProcessId::unused(0));
        let mut heard = |method: &str, result: &str| {
            learn(&mut tasks, r#"{"task":{"taskId":"t"}}"#, process);
            tasks.heard("t", method, Outcome::Result, result.as_bytes(), Some(0..result.len()));
            tasks.process_of("t").is_none()
        };
        assert!(!heard("tasks/get", r#"{"taskId":"t","status":"working"}"#));
        assert!(
            !heard("tasks/get", r#"{"taskId":"t","status":"completed"}"#),
            "its result is asked for next"
        );
        assert!(heard("tasks/get", r#"{"resultType":"complete","status":"completed","result":{}}"#));
        assert!(heard("tasks/get", r#"{"taskId":"t","status":"cancelled"}"#));
        assert!(heard("tasks/result", r#"{"content":[]}"#));
    }

    #[test]
    fn a_server_cannot_make_it_remember_without_end() {
        let (mut tasks, process) = (TaskTable::default(), ProcessId::unused(0));
        for number in 0..MAX_TASKS + 10 {
            learn(&mut tasks, &format!(r#"{{"task":{{"taskId":"{number}"}}}}"#), process);
        }
        assert_eq!((tasks.open.len(), tasks.order.len()), (MAX_TASKS, MAX_TASKS));
        assert!(tasks.process_of("0").is_none());
    }
}
