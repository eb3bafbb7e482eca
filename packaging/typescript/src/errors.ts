/** The errors of this package: one class for each case that a caller may want to handle differently. No message contains a token. */

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
    /** What failed, and why. */
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

/** The sandbox could not be attached, or its attachment has ended; waiting longer would not help. */
export class AttachmentError extends CofferdamError {
  constructor(
    message: string,
    /** A cause of the API (`no-sandbox`, `unauthorized`, …), or the state `suspended` or `refused`. */
    readonly reason: string,
  ) {
    super(message);
  }
}

/** The response does not follow Cofferdam's admin API. */
export class ProtocolError extends CofferdamError {}

/** The options or the environment do not determine how to reach the sidecar, or which sandbox is meant. */
export class SettingsError extends CofferdamError {}
