/** What can go wrong, one class for each thing that a caller may decide on. No message contains a token. */

/** The base of all errors of this package. */
export class CofferdamError extends Error {
  constructor(message: string) {
    super(message);
    this.name = new.target.name;
  }
}

/** The sidecar refused a request. */
export class ApiError extends CofferdamError {
  constructor(
    readonly status: number,
    /** A stable code. */
    readonly code: string,
    /** What was being done, and why it failed. */
    readonly reason: string,
    /** What to do next. */
    readonly hint?: string,
  ) {
    super(hint === undefined ? reason : `${reason}; ${hint}`);
  }
}

/** The token is missing, wrong, expired or not for this grant. */
export class UnauthorizedError extends ApiError {}

/** There is no such session, enrolment, attachment or grant, or the token may not see it. */
export class NotFoundError extends ApiError {}

/** There is no sidecar at the address, or the connection to it was lost. */
export class UnreachableError extends CofferdamError {}

/** The sidecar, or the sandbox, took longer than the timeout allows. */
export class DeadlineError extends CofferdamError {}

/** The sandbox is not attached, and waiting would not help. */
export class AttachmentError extends CofferdamError {
  constructor(
    message: string,
    /** A cause of the API (`no-sandbox`, `unauthorized`, …), or the state `suspended` or `refused`. */
    readonly reason: string,
  ) {
    super(message);
  }
}

/** The response is not one of Cofferdam's admin API. */
export class ProtocolError extends CofferdamError {}

/** The options or the environment do not say how to reach the sidecar, or which sandbox is meant. */
export class SettingsError extends CofferdamError {}
