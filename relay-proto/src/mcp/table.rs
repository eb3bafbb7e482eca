//! The rows of the table. Each begins with what MCP's schema states about the method, followed by how the relay treats it.

use super::Direction::{Both, ToHarness, ToServer};
use super::Subject::Param;
use super::{
    Audience, CANCELLED, DISCOVER, Direction, Eras, INITIALIZE, INITIALIZED, LISTEN, Method, MethodKind,
    ReplayRole, SET_LEVEL, SUBSCRIBE, Setting, ShimWait, Subject, TOOLS_CALL, TOOLS_CHANGED, TOOLS_LIST,
    TaskRole, UNSUBSCRIBE,
};

/// Sorted by name, for [`super::lookup`].
pub const METHODS: &[Method] = &[
    request("completion/complete", ToServer, Eras::Both).repeatable(),
    request("elicitation/create", ToHarness, Eras::Both),
    request(INITIALIZE, ToServer, Eras::Legacy)
        .repeatable()
        .quick_response()
        .replay(ReplayRole::Handshake)
        .shim_wait(ShimWait::Handshake),
    request(SET_LEVEL, ToServer, Eras::Legacy).repeatable().replay(ReplayRole::Setting(Setting::LogLevel)),
    notification(CANCELLED, Both, Eras::Both).audience(Audience::CancelledRequest),
    notification("notifications/elicitation/complete", ToHarness, Eras::Legacy),
    notification(INITIALIZED, ToServer, Eras::Legacy).replay(ReplayRole::Initialized),
    notification("notifications/message", ToHarness, Eras::Both),
    notification("notifications/progress", Both, Eras::Both).audience(Audience::ProgressToken),
    notification("notifications/prompts/list_changed", ToHarness, Eras::Both).server_wide(),
    notification("notifications/resources/list_changed", ToHarness, Eras::Both).server_wide(),
    notification("notifications/resources/updated", ToHarness, Eras::Both).server_wide(),
    notification("notifications/roots/list_changed", ToServer, Eras::Legacy).audience(Audience::All),
    notification("notifications/subscriptions/acknowledged", ToHarness, Eras::Stateless).server_wide(),
    notification("notifications/tasks", ToHarness, Eras::Stateless),
    notification("notifications/tasks/status", Both, Eras::Legacy),
    notification(TOOLS_CHANGED, ToHarness, Eras::Both).server_wide(),
    request("ping", Both, Eras::Legacy).repeatable().quick_response(),
    request("prompts/get", ToServer, Eras::Both).repeatable().subject(Param("name")),
    request("prompts/list", ToServer, Eras::Both).repeatable(),
    request("resources/list", ToServer, Eras::Both).repeatable(),
    request("resources/read", ToServer, Eras::Both).repeatable().subject(Param("uri")),
    request(SUBSCRIBE, ToServer, Eras::Legacy).repeatable().replay(ReplayRole::Setting(Setting::Subscribe)),
    request("resources/templates/list", ToServer, Eras::Both).repeatable(),
    request(UNSUBSCRIBE, ToServer, Eras::Legacy)
        .repeatable()
        .replay(ReplayRole::Setting(Setting::Unsubscribe)),
    request("roots/list", ToHarness, Eras::Both),
    request("sampling/createMessage", ToHarness, Eras::Both),
    request(DISCOVER, ToServer, Eras::Stateless).repeatable().quick_response().shim_wait(ShimWait::Handshake),
    request(LISTEN, ToServer, Eras::Stateless)
        .open_ended()
        .replay(ReplayRole::Listen)
        .shim_wait(ShimWait::Listener),
    request("tasks/cancel", Both, Eras::Both).task(TaskRole::EndsOnReply),
    request("tasks/get", Both, Eras::Both).repeatable().task(TaskRole::About),
    request("tasks/list", Both, Eras::Legacy).repeatable(),
    request("tasks/result", Both, Eras::Legacy).repeatable().open_ended().task(TaskRole::EndsOnReply),
    request("tasks/update", ToServer, Eras::Stateless).task(TaskRole::About),
    request(TOOLS_CALL, ToServer, Eras::Both).subject(Subject::Tool),
    request(TOOLS_LIST, ToServer, Eras::Both).repeatable().replay(ReplayRole::ToolList),
];

const fn request(name: &'static str, direction: Direction, eras: Eras) -> Method {
    method(name, MethodKind::Request, direction, eras)
}

const fn notification(name: &'static str, direction: Direction, eras: Eras) -> Method {
    method(name, MethodKind::Notification, direction, eras)
}

/// A method with the defaults, which also apply to methods that are not in the table.
const fn method(name: &'static str, kind: MethodKind, direction: Direction, eras: Eras) -> Method {
    Method {
        name,
        kind,
        direction,
        eras,
        repeatable: false,
        open_ended: false,
        replay: ReplayRole::None,
        task: TaskRole::None,
        subject: Subject::None,
        quick_response: false,
        server_wide: false,
        audience: Audience::Current,
        shim_wait: ShimWait::Call,
    }
}

impl Method {
    const fn repeatable(self) -> Self {
        Self { repeatable: true, ..self }
    }

    const fn open_ended(self) -> Self {
        Self { open_ended: true, ..self }
    }

    const fn replay(self, replay: ReplayRole) -> Self {
        Self { replay, ..self }
    }

    /// For a request about one task, whose id is the request's subject.
    const fn task(self, task: TaskRole) -> Self {
        Self { task, subject: Param("taskId"), ..self }
    }

    const fn subject(self, subject: Subject) -> Self {
        Self { subject, ..self }
    }

    const fn quick_response(self) -> Self {
        Self { quick_response: true, ..self }
    }

    const fn server_wide(self) -> Self {
        Self { server_wide: true, ..self }
    }

    const fn audience(self, audience: Audience) -> Self {
        Self { audience, ..self }
    }

    const fn shim_wait(self, shim_wait: ShimWait) -> Self {
        Self { shim_wait, ..self }
    }
}
