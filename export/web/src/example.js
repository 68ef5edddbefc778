// Lines to try the page with, written for it.
export default `Water the tomatoes early, before the sun is high.
The night train to the coast leaves at a quarter past eleven.
Our neighbour's cat sleeps on the warm bonnet of the car.
Interest rates will stay where they are until spring.
To keep bread fresh, wrap it in linen and leave it in the dark.
The bridge is closed to lorries while the bearings are replaced.
She practised the same eight bars until the candle went out.
A password should be long rather than clever.
The glacier has lost a third of its length since my grandfather's day.
Knead the dough for ten minutes, then let it rest under a cloth.
The council wants fewer cars and more trees in the old town.
If the screen stays black, hold the power button for ten seconds.
He scored twice in the last five minutes and ran to the fans.
Snow fell all night and buried the fences.
The museum shows tools that are forty thousand years old.
My knee hurts whenever the weather is about to change.
The patient should take one tablet after each meal.
Investors sold shares after the company lowered its forecast.
The choir sang without a conductor and nobody noticed.
Bees find their way home by the position of the sun.
The lecture explains why the sky is blue and sunsets are red.
Turn off the lights in the hallway, please.
The recipe needs two eggs, some flour and a pinch of salt.
A storm has cut the power in three villages.
The judge gave both sides a month to reach an agreement.
Save your work often; the program forgets nothing that you told it to keep.`;
