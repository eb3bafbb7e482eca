//! MCP tasks, which a server works on after it has answered the call that created them. A later request about a task
//! must reach the process that runs it, with the credential of the tool that created it. A response names its task as
//! `result.task.taskId` (protocol 2025-11-25), or as `result.taskId` with `resultType` `task` (later protocols).
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
    open: HashMap<Box<str>, CreatedTask>,
    /// The oldest first; ids of finished tasks are skipped.
    order: VecDeque<Box<str>>,
}

/// The process that runs a task, and the tool that created it.
#[derive(Debug)]
struct CreatedTask {
    process: ProcessId,
    tool: ShortText,
}

/// Tasks that one link remembers: an honest harness has fewer at a time.
const MAX_TASKS: usize = 1024;
const MAX_ID: usize = 256;
/// A response that only names a task has a few hundred bytes; larger ones are not searched.
const MAX_RESPONSE: usize = 16 * 1024;

/// Built once: building it takes longer than searching a small response, and every response of a tool is searched.
static TASK_ID: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"taskId\""));

/// The task that a request is about.
pub(super) fn task_of_request(
    message: &[u8],
    method: &Method,
    params: Option<Range<usize>>,
) -> Option<Box<str>> {
    if method.task == TaskRole::None {
        return None;
    }
    let id = json::member(message, params?, "taskId")?;
    json::text(message, id).filter(|id| id.len() <= MAX_ID).map(Into::into)
}

impl TaskTable {
    /// Remembers the task that a call created, if its response names one.
    pub(super) fn record(
        &mut self,
        message: &[u8],
        result: Range<usize>,
        process: ProcessId,
        tool: &ShortText,
    ) {
        if message.len() > MAX_RESPONSE || TASK_ID.find(message).is_none() {
            return;
        }
        let member = |object: &Range<usize>, key: &str| json::member(message, object.clone(), key);
        let is_task = member(&result, "resultType").is_some_and(|span| &message[span] == b"\"task\"");
        let task = member(&result, "task").or(is_task.then_some(result));
        let id = task.and_then(|task| member(&task, "taskId")).and_then(|id| json::text(message, id));
        if let Some(id) = id.filter(|id| id.len() <= MAX_ID) {
            self.insert(id.into(), CreatedTask { process, tool: tool.clone() });
        }
    }

    /// Forgets a task if this response is the last that the harness needs about it.
    pub(super) fn close_if_finished(
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
        let is_finished = match (role, outcome) {
            (Some(TaskRole::EndsOnReply), _) | (_, Outcome::Error) => true,
            (_, Outcome::Result) => match text("status").as_deref() {
                Some("cancelled") => true,
                // The stateless protocol includes the result here; in earlier versions the harness requests it next.
                Some("completed" | "failed") => text("resultType").is_some(),
                _ => false,
            },
        };
        if is_finished {
            self.open.remove(task);
        }
    }

    pub(super) fn process_of(&self, task: &str) -> Option<ProcessId> {
        self.open.get(task).map(|task| task.process)
    }

    /// The tool that created the task.
    pub(super) fn tool_of(&self, task: &str) -> Option<&str> {
        self.open.get(task).map(|task| &*task.tool)
    }

    pub(super) fn has_tasks_on(&self, process: ProcessId) -> bool {
        self.open.values().any(|task| task.process == process)
    }

    pub(super) fn forget_process(&mut self, process: ProcessId) {
        self.open.retain(|_, task| task.process != process);
    }

    fn insert(&mut self, id: Box<str>, task: CreatedTask) {
        while self.order.len() >= MAX_TASKS {
            if let Some(oldest) = self.order.pop_front() {
                self.open.remove(&oldest);
            }
        }
        self.order.push_back(id.clone());
        self.open.insert(id, task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tasks: &mut TaskTable, result: &str, process: ProcessId) {
        tasks.record(result.as_bytes(), 0..result.len(), process, &"make".into());
    }

    #[test]
    fn created_tasks_are_recognised_in_both_protocol_eras() {
        let (mut tasks, process) = (TaskTable::default(), ProcessId::unused(0));
        record(&mut tasks, r#"{"task":{"taskId":"old","status":"working"}}"#, process);
        record(&mut tasks, r#"{"resultType":"task","taskId":"new","status":"working"}"#, process);
        record(&mut tasks, r#"{"resultType":"complete","taskId":"no"}"#, process);
        record(&mut tasks, r#"{"content":[{"type":"text","text":"\"taskId\":\"neither\""}]}"#, process);
        assert_eq!(tasks.process_of("old"), Some(process));
        assert_eq!((tasks.process_of("new"), tasks.tool_of("new")), (Some(process), Some("make")));
        assert_eq!(tasks.open.len(), 2);
        assert!(tasks.has_tasks_on(process));
        tasks.forget_process(process);
        assert!(!tasks.has_tasks_on(process));
    }

    #[test]
    fn a_task_is_forgotten_when_its_result_was_delivered() {
        let (mut tasks, process) = (TaskTable::default(), ProcessId::unused(0));
        let mut is_closed_by = |method: &str, result: &str| {
            record(&mut tasks, r#"{"task":{"taskId":"t"}}"#, process);
            tasks.close_if_finished("t", method, Outcome::Result, result.as_bytes(), Some(0..result.len()));
            tasks.process_of("t").is_none()
        };
        assert!(!is_closed_by("tasks/get", r#"{"taskId":"t","status":"working"}"#));
        assert!(
            !is_closed_by("tasks/get", r#"{"taskId":"t","status":"completed"}"#),
            "the result is requested next"
        );
        assert!(is_closed_by("tasks/get", r#"{"resultType":"complete","status":"completed","result":{}}"#));
        assert!(is_closed_by("tasks/get", r#"{"taskId":"t","status":"cancelled"}"#));
        assert!(is_closed_by("tasks/result", r#"{"content":[]}"#));
    }

    #[test]
    fn the_number_of_remembered_tasks_is_bounded() {
        let (mut tasks, process) = (TaskTable::default(), ProcessId::unused(0));
        for number in 0..MAX_TASKS + 10 {
            record(&mut tasks, &format!(r#"{{"task":{{"taskId":"{number}"}}}}"#), process);
        }
        assert_eq!((tasks.open.len(), tasks.order.len()), (MAX_TASKS, MAX_TASKS));
        assert!(tasks.process_of("0").is_none());
    }
}
