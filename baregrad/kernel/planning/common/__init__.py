"""What every planner works on: a plan in the making, and threads to share.

In: facts and a target. Out: steps of a schedule, with a reason for each choice. Imports `language`,
`facts` and `instructions`.
"""
